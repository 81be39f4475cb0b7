"""Simulated seconds: how long a round would take with clients of given speeds, if the server waits for the slowest.

A client receives, computes and sends, one after the other:

    seconds = floats received / bandwidth + per-example gradients / speed + floats sent / bandwidth,

where the gradients include those of the stopping criterion. A round takes as long as its slowest client, or until the
deadline. The server's computation takes no time, and the server does not wait for clients that dropped out or are in
quarantine.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..core import checks
from ..core.record import record
from ..core.vocabulary import Client, Round, Solves, StopReason
from .stage import Memory, Outcome, Stage


@record
class ClientTime(Stage):
    """How fast clients are, and how long the server waits for them.

    Attributes:
        gradients_per_second: Per-example gradients that a client computes per second: a number, or one per client
            [clients].
        floats_per_second: Floats that a client receives or sends per second: a number, or one per client [clients].
            None: sending takes no time.
        deadline: Seconds after which the server continues without the clients that have not answered; None: it waits
            for all. A client that is late keeps its previous state, like one that dropped out, but finishes its work,
            which is counted.

    >>> time = ClientTime([10_000, 20_000], floats_per_second=1e6)
    >>> time.seconds(np.arange(2), gradients=5000, floats=2000).tolist()
    [0.502, 0.252]
    """

    gradients_per_second: Any
    floats_per_second: Any = None
    deadline: Any = None

    def __post_init__(self) -> None:
        def put(name: str, **options: Any) -> None:
            object.__setattr__(self, name, checks.number(name, getattr(self, name), above=0, **options))

        put("gradients_per_second", per_client=True)
        if self.floats_per_second is not None:
            put("floats_per_second", per_client=True)
        if self.deadline is not None:
            put("deadline")

    def check(self, num_clients: int) -> None:
        """What is given per client must fit their number."""
        checks.client_axis("gradients_per_second", self.gradients_per_second, num_clients)
        if self.floats_per_second is not None:
            checks.client_axis("floats_per_second", self.floats_per_second, num_clients)

    def seconds(self, ids: Any, gradients: Any, floats: Any) -> Any:
        """What so many gradients and floats [ids] take clients `ids` [ids]; arrays of NumPy or of JAX."""
        computing = gradients / _of_clients(self.gradients_per_second, ids)
        if self.floats_per_second is None:
            return computing
        return computing + floats / _of_clients(self.floats_per_second, ids)

    def receive(self, outcome: Outcome, memory: Memory, client: Client, round: Round) -> Outcome:
        if self.deadline is None:
            return outcome
        deadline = jnp.asarray(self.deadline)
        gradients, floats = (jnp.asarray(x).astype(deadline.dtype) for x in (outcome.gradients, outcome.floats))
        late = outcome.ok & (self.seconds(client.id, gradients, floats) > deadline)
        code = jnp.where(late, StopReason.LATE.code, outcome.stop_code)
        return outcome._replace(ok=outcome.ok & ~late, stop_code=code)

    def shortest_solve(self, cohorts: np.ndarray, solves: Solves, floats: int) -> float | None:
        """Finds the solve that took the least time.

        Args:
            cohorts: The clients [rounds, cohort].
            solves: Their solves [rounds, cohort].
            floats: Floats that a client receives and sends in a round.

        Returns:
            Its simulated seconds; None where no solve took place.
        """
        if not solves.took_place.any():
            return None
        seconds = self.seconds(cohorts, np.asarray(solves.gradient_samples, np.float64), floats)
        return float(np.min(np.asarray(seconds)[solves.took_place]))

    def round_seconds(self, ids: np.ndarray, solves: Solves, floats_down: int, floats_up: int) -> float:
        """How long the round of clients `ids` [cohort] took."""
        failed = np.asarray(solves.stop_code) == StopReason.FAILED.code
        floats = floats_down + np.where(failed, 0, floats_up)  # a solve that failed has nothing to send
        each = self.seconds(ids, np.asarray(solves.gradient_samples, np.float64), floats)
        longest = float(np.max(each, where=solves.took_place, initial=0.0))
        return longest if self.deadline is None else min(longest, self.deadline)


def log_normal(median: float, sigma: float, num_clients: int, seed: int = 0) -> np.ndarray:
    """Speeds [num_clients] whose logarithms are normal.

    With sigma = 1 the fastest tenth of the clients is at least 13 times as fast as the slowest tenth.

    Args:
        median: Of the speeds, above 0.
        sigma: The standard deviation of their logarithms, at least 0.
        num_clients: How many clients there are.
        seed: The seed from which they are drawn.

    Returns:
        The speeds.

    >>> bool(np.median(log_normal(100.0, 0.5, 10_001)) > 98)
    True
    """
    median = checks.number("median", median, above=0)
    sigma = checks.number("sigma", sigma, at_least=0)
    number = checks.integer("num_clients", num_clients, at_least=1)
    rng = np.random.default_rng([_STREAM, checks.integer("seed", seed, at_least=0)])
    return median * np.exp(sigma * rng.standard_normal(number))


_STREAM = 0x71AE  # keeps these draws apart from anything else that has the same seed


def _of_clients(value: Any, ids: Any) -> Any:
    return value if np.ndim(value) == 0 else value[ids]
