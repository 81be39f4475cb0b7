"""What an algorithm is: three pure functions on the server's record and the clients' rows.

Every method here solves min_u f_i(u) - <linear_i, u> + penalty_i / 2 ||u - center||^2 on each selected client;
methods differ in the terms (`subproblems`) and in what follows (`update`). A new method is a `record` with the
members of `Algorithm`, in a file of its own in this folder. What it lacks, and what its functions return that has not
the shapes said here, is told when a simulation is made (`contract`).
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import Array

from ..core.vocabulary import Clients, Solutions, Subproblem
from .criteria import Criterion
from .local_solver import LocalSolver


class Algorithm(Protocol):
    """What the engine asks of an algorithm.

    Failed solves need no thought here: their clients come with weight 0 and finite parameters, and keep their
    former rows whatever `update` returns for them. If every solve failed, the server keeps its own too. So do clients
    that dropped out, were late or whose update was kept out (`faults`).

    """

    @property
    def local(self) -> LocalSolver: ...
    @property
    def criterion(self) -> Criterion: ...

    def init(self, params: Any, clients: Clients) -> tuple[Any, dict[str, Any]]:
        """The server's record, and the rows [clients, ...] of these clients at the start; {} keeps none."""
        ...

    def subproblems(self, params: Any, server: Any, rows: dict[str, Any], cohort: Clients) -> Subproblem:
        """The cohort's subproblems, from z^k and the cohort's rows [cohort, ...]."""
        ...

    def update(
        self, params: Any, server: Any, rows: dict[str, Any], solutions: Solutions, cohort: Clients
    ) -> tuple[Any, Any, dict[str, Any]]:
        """z^{k+1}, the server's record and the cohort's rows."""
        ...

    def penalty_mean(self, server: Any) -> Array:
        """The mean penalty over all clients, for the history; NaN if there is none."""
        ...

    def floats_down(self, num_params: int) -> int:
        """Numbers that the server must send to a selected client."""
        ...

    def floats_up(self, num_params: int) -> int:
        """Numbers that a selected client must send."""
        ...


@runtime_checkable
class RenewableSums(Protocol):
    """What an algorithm has besides if its server's record is sums over all clients that can lose their digits.

    After a round that leaves the record `worn`, the engine forms it anew: it counts one client after another from their
    rows, wherever those live, beginning with a record of zeros. What several devices have counted is merged.
    """

    def worn(self, server: Any) -> Array:
        """Whether the sums have taken in too much rounding."""
        ...

    def count(self, server: Any, row: dict[str, Any], client: Clients) -> Any:
        """The server's record with the share of one more client, from its row; `client`'s fields are its numbers."""
        ...


class ModelExchange:
    """The rest of an algorithm whose clients receive a model and send one, and that has no penalties to tell of."""

    def penalty_mean(self, server: Any) -> Array:
        return jnp.full((), jnp.nan, jnp.float32)

    def floats_down(self, num_params: int) -> int:
        return num_params

    def floats_up(self, num_params: int) -> int:
        return num_params
