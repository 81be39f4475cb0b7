"""SCAFFOLD: local SGD whose steps are corrected by control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, Algorithm 1 with both
options for the control variates.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import RunningSum
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria, server_step
from .criteria import Criterion
from .local_solver import LocalSolver
from .server_step import ServerStep

__all__ = ["scaffold"]


@record
class Scaffold:
    """See `scaffold`. The server keeps its own control variate c = sum_i alpha_i c_i over all clients."""

    local: LocalSolver
    criterion: Criterion
    server: ServerStep
    control: str = static(default="steps")

    @property
    def needs_gradient(self) -> bool:
        return self.control == "gradient"

    def init(self, params: Params, clients: Clients) -> dict[str, Any]:
        return {"control": RunningSum.of(optax.tree.zeros_like(params)), "optimizer": self.server.init(params)}

    def start(self, params: Params, client: Client) -> Rows:
        return {"controls": optax.tree.zeros_like(params)}

    def broadcast(self, params: Params, server: dict[str, Any], round: Round) -> dict[str, Any]:
        return {"params": params, "control": optax.tree.cast_like(server["control"].value, params)}

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        # The step u - eta (g_i(u) - c_i + c) is one on f_i(u) - <c_i - c, u>.
        return Subproblem(linear=optax.tree.sub(row["controls"], sent["control"]))

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        moved = optax.tree.sub(solution.params, sent["params"])
        change = self._change(moved, sent["control"], solution)
        return {"moved": moved, "change": change}, {"controls": optax.tree.add(row["controls"], change)}

    def _change(self, moved: Any, control: Any, solution: Solution) -> Any:
        """c_i+ - c_i."""
        if self.needs_gradient:  # option I: at z the subproblem's gradient is grad f_i(z) - c_i + c
            return optax.tree.sub(solution.gradient, control)
        rate = jnp.asarray(self.local.learning_rate)
        length = rate * jnp.maximum(solution.steps, 1).astype(rate.dtype)  # K_i eta_i
        # Option II: c_i+ - c_i = (z - u+) / (K_i eta_i) - c. Without a step there is no gradient to learn from.
        change = optax.tree.sub(trees.scale(-1 / length, moved), control)
        return trees.where(solution.steps > 0, change, optax.tree.zeros_like(change))

    def aggregate(
        self, params: Params, server: dict[str, Any], received: Received, round: Round
    ) -> tuple[Params, dict[str, Any]]:
        mean = optax.tree.scale(1 / received.weight, received.total["moved"])
        params, state = self.server.apply(params, mean, server["optimizer"])
        return params, {"control": server["control"].add(received.total["change"]), "optimizer": state}


def scaffold(
    local: LocalSolver,
    *,
    server_learning_rate: Any = None,
    criterion: Criterion | None = None,
    server: ServerStep | None = None,
    control: str = "steps",
) -> Scaffold:
    """SCAFFOLD: control variates c_i and c keep a client's steps from drifting towards its own optimum.

    Each selected client does K_i steps u <- u - eta_i (g_i(u) - c_i + c) from z^k, with g_i a gradient of f_i on a
    minibatch. In this package's subproblem, linear = c_i - c and there is no penalty. Then

        c_i+    = c_i - c + (z^k - u_i+) / (K_i eta_i),          the mean of the g_i along the way (option II),
               or grad f_i(z^k), over all of the client's rows (option I: `control="gradient"`),
        z^{k+1} = z^k + eta_g sum alpha_i (u_i+ - z^k) / sum alpha_i,     both over the selected clients,
        c+      = c + sum alpha_i (c_i+ - c_i),                           over the selected clients.

    The paper has equal weights; with alpha_i = 1 / N these are its lines. With any weights c = sum alpha_i c_i over
    all clients, so at a fixed point (u_i+ = z, c = 0, c_i = grad f_i(z)) sum alpha_i grad f_i(z) = 0: the minimiser
    of sum alpha_i f_i. All c_i are 0 at first.

    A client's state is `controls`, c_i [clients, ...]. A selected client receives z and c and sends both differences,
    2 n floats each way, as in the paper.

    Args:
        local: With `optax.sgd`, since for any other optimizer (z - u+) / (K_i eta_i) is not a mean of gradients. K_i
            is the number of steps done: max_epochs * ceil(N_i / batch_size), unless the solve stops early.
        server_learning_rate: eta_g, above 0; by default 1.
        criterion: When a local solve may stop early; by default it runs to `local.max_epochs`. A client that did no
            step keeps its c_i.
        server: A `ServerStep(...)`, an optimizer that the server applies to the averaged update, instead of eta_g.
        control: What a client's control variate is: the mean gradient along its "steps", or its "gradient" at z^k. The
            latter is free if steps use the full gradient; with minibatches it takes one more pass over the rows, which
            the history counts in `gradient_samples` and `criterion_samples`.

    >>> scaffold(LocalSolver(learning_rate=0.1, batch_size=10, max_epochs=5)).server.learning_rate
    1.0
    """
    checks.part("local", local, ("step",), "fa.LocalSolver(...)")
    if local.optimizer is not optax.sgd:
        raise ValueError(f"scaffold needs optimizer=optax.sgd in local, got {local.optimizer!r}")
    if local.options:
        raise ValueError(f"scaffold needs optax.sgd without momentum in local, got options={local.options!r}")
    criterion = criteria.checked(criterion, unless_kept="'server'")
    choice = checks.choice("control", control, ("steps", "gradient"))
    if server is not None and server_learning_rate is not None:
        raise ValueError("server and server_learning_rate both say how the server steps: give one of them")
    if server is None and server_learning_rate is not None:
        server = ServerStep(learning_rate=checks.number("server_learning_rate", server_learning_rate, above=0))
    return Scaffold(local=local, criterion=criterion, server=server_step.checked(server), control=choice)
