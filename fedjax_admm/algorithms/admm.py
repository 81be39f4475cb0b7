"""FedADMM, FedADMM-In and FedADMM-InSa: one method with different parts. `fedadmm` makes it.

Song, Wang and Zuazua, "FedADMM-InSa: An Inexact and Self-Adaptive ADMM for Federated Learning", Algorithms 1
to 3. They differ in the criterion that ends a local solve, in the rule by which a client's penalty changes, and
in the server's memory delta. What the server remembers of its clients (`heard`, `forgetting`) is not the paper's, whose
server counts all of them alike: it is for populations of which a round sees a small share.

Other authors' methods are this one with another part:
Gong, Li and Freris, "FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity", ICDE
2022: `server_step`. Wang, Marella and Anderson, "FedADMM: A Federated Primal-Dual Algorithm Allowing Partial
Participation", CDC 2022: `server_prox`. Wang et al., "Beyond ADMM", AAAI 2023: `dual_step`. Zhou
and Li, "Federated Learning via Inexact ADMM", TPAMI 2023: `local_rounds`. FedDR is in `feddr.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from ..core import trees
from ..core.record import record, static
from ..core.sums import Apart, PositiveSum, RunningSum
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import fading
from .criteria import Criterion
from .local_solver import LocalSolver
from .penalties import Evidence, PenaltyRule
from .penalties.constant import Constant
from .penalties.level import Level, pools
from .penalties.rule import adapt, start_memory


@record
class Server:
    """The server's sums over all clients, with the penalty by which it counts each of them.

    Where messages fade, or clients that were not heard from do not count, each has a share s_i besides, else 1.
    """

    total: RunningSum  # [...] sum_i alpha_i s_i (beta_i u_i - lambda_i)
    weight: PositiveSum  # sum_i alpha_i s_i beta_i
    last: Any = None  # int32, the round of which these are the sums, -1 at the start; None where none is needed
    memory: Any = None  # `fading.Memory`, where the server finds out how much to forget
    level: Any = None  # `Level`, where the penalty rule has one


class Sent(NamedTuple):
    """What a server sends that finds out something itself."""

    params: Any  # z
    forgotten: Any = None  # how much so far
    level: Any = None  # logarithm of the factor on all first penalties


@record
class FedADMM:
    """The family. See `fedadmm`, `fedadmm_in` and `fedadmm_insa`.

    A client's row has its `client_params` u, its `duals` lambda, its `penalties` beta, the penalty with which the
    server counts it (`sent_penalties`), and what the penalty rule remembers (`rule`), if it does. Where the server does
    not count all clients alike, the row has the round of its last message that counted (`message_rounds`), -1 before,
    and where it finds out how much to forget, what it had `forgotten` by then.
    """

    local: LocalSolver
    criterion: Criterion
    penalty_rule: PenaltyRule
    penalty: Any
    delta: Any
    unselected_penalty: str = static()
    heard: str = static(default="all")
    forgetting: Any = None  # a factor, or `fading.AutoForgetting`; None is 1: nothing fades
    server_step: Any = None  # None: the server averages over all clients
    server_prox: Any = None  # None: the problem has no term of the server's
    dual_step: Any = 1.0
    solve_start: str = static(default="server")
    relaxation: Any = None  # None is 1: clients are pulled towards the server's parameters
    local_rounds: Any = None  # None is 1

    @property
    def display_name(self) -> str:
        """The paper's name for these parts: In with an inexactness criterion, Sa with penalties that adapt."""
        if self.relaxation is not None:
            return "FedDR"
        inexact = "" if self.criterion.residual is None else "In"
        adaptive = "" if isinstance(self.penalty_rule, Constant) else "Sa"
        return f"FedADMM-{inexact}{adaptive}".removesuffix("-")

    def init(self, params: Params, clients: Clients) -> Server:
        beta = trees.per_client(self.penalty, clients.ids).astype(trees.scalar_dtype(params))
        weight = jnp.sum(clients.weights * beta)
        # u_i^0 = z^0 and lambda_i^0 = 0, so the sum is weight * z^0.
        if self.server_step is not None:  # it keeps no sums
            return Server(RunningSum.of({}), PositiveSum.of(weight))
        weight = weight if self.heard == "all" else jnp.zeros_like(weight)
        total = jax.tree.map(lambda leaf: (weight * leaf.astype(weight.dtype)).astype(leaf.dtype), params)
        memory = self.forgetting.start(weight.dtype) if self._finds_out else None
        last = None if self.forgetting is None or self._finds_out else jnp.int32(-1)
        level = Apart(Level.start(weight.dtype)) if pools(self.penalty_rule) else None
        return Server(RunningSum.of(total), PositiveSum.of(weight), last, memory, level)

    def start(self, params: Params, client: Client) -> Rows:
        beta = jnp.asarray(self.penalty, trees.scalar_dtype(params))
        row = {
            "client_params": params,
            "duals": optax.tree.zeros_like(params),
            "penalties": beta,
            "sent_penalties": beta,
        }
        memory = start_memory(self.penalty_rule, params)
        row |= {"rule": memory} if memory else {}
        row |= {} if self.counts_alike else {"message_rounds": jnp.int32(-1)}
        return row | ({"forgotten": jnp.int32(0)} if self._finds_out else {})

    def broadcast(self, params: Params, server: Server, round: Round) -> Any:
        """z, and what the server has found out, where it does."""
        if server.memory is None and server.level is None:
            return params
        forgotten = None if server.memory is None else server.memory.forgotten
        return Sent(params, forgotten, None if server.level is None else server.level.value.log)

    def subproblem(self, sent: Any, row: Rows, client: Client, round: Round) -> Subproblem:
        previous = row["client_params"]
        start = None if self.solve_start == "server" else previous
        beta, rounds = self._penalty(sent, row), self.local_rounds
        center = None if self.relaxation is None else self._center(_opened(sent).params, row)
        dual_step = None if rounds is None else self.dual_step * beta
        return Subproblem(row["duals"], beta, center, start, previous, rounds, dual_step)

    def _penalty(self, sent: Any, row: Rows) -> Array:
        """The client's own, or its first one times the level that the server has found."""
        level, beta = _opened(sent).level, row["penalties"]
        if level is None:
            return beta
        rule: Any = self.penalty_rule
        lowest, highest = (jnp.asarray(bound, beta.dtype) for bound in rule.bounds)
        return jnp.clip(jnp.exp(level).astype(beta.dtype) * self.penalty, lowest, highest)

    def _center(self, z: Any, row: Rows) -> Any:
        """Whither a client is pulled: z, or beyond it, seen from the client's own parameters."""
        if self.relaxation is None:
            return z
        back = 1 - self.relaxation
        return optax.tree.add(z, trees.scale(back, optax.tree.sub(row["client_params"], z)))

    def reply(self, sent: Any, row: Rows, solution: Solution, client: Client, round: Round) -> tuple[Any, Rows]:
        z, now = _opened(sent).params, _opened(sent).forgotten if self._finds_out else round.number
        u, beta, counted = solution.params, self._penalty(sent, row), row["sent_penalties"]
        pull = optax.tree.sub(u, self._center(z, row))
        duals = row["duals"] if self.local_rounds is None else solution.linear  # after all but the last local round
        duals = optax.tree.sub(duals, trees.scale(self.dual_step * beta, pull))  # (3.10b)
        seen = Evidence.of(solution, row["client_params"], row["duals"], duals, z, round)
        new_beta, memory = adapt(self.penalty_rule, beta, seen, row.get("rule", {}))  # (3.15)

        # What the server holds of this client changes from counted * u - lambda, or the share of it that still counts,
        # to sent * u+ - lambda+. With "current" it is counted with its new penalty only from after this round's average
        # on.
        current = self.unselected_penalty == "current"
        sent_beta = counted if current else beta
        held, held_duals = counted if self.server_step is None else beta, row["duals"]
        if not self.counts_alike:
            share = self._share(row, now)
            held, held_duals = share * counted, trees.scale(share, row["duals"])
        # Each difference by itself: beside duals of any size, what a small penalty changes would be rounded away.
        moved = optax.tree.sub(trees.scale(sent_beta, u), trees.scale(held, row["client_params"]))
        message: dict[str, Any] = {"change": optax.tree.sub(moved, optax.tree.sub(duals, held_duals))}
        if current:
            growth = new_beta - counted
            message |= {"weight": growth, "after": trees.scale(growth, u)}
            message |= {} if self.counts_alike else {"before": counted - held}
        else:
            message["weight"] = sent_beta - held if self.server_step is None else beta
        kept = {
            "client_params": u,
            "duals": duals,
            "penalties": new_beta,
            "sent_penalties": new_beta if current else beta,
        }
        kept |= {"rule": memory} if "rule" in row else {}
        kept |= {} if self.counts_alike else {"message_rounds": round.number}
        if self._finds_out:
            fresh = optax.tree.sub(trees.scale(sent_beta, u), duals)
            past = optax.tree.sub(trees.scale(held, row["client_params"]), held_duals)
            known = (row["message_rounds"] >= 0) | (self.heard == "all")
            message["said"] = self.forgetting.say(z, sent_beta, fresh, past, held, client.weight, known)
            kept["forgotten"] = now
        rule: Any = self.penalty_rule
        if pools(rule):
            proposal, known = rule.propose(beta, seen)
            message["level"] = jnp.where(known, jnp.stack([proposal, jnp.ones_like(proposal)]), 0)
        return message, kept

    def aggregate(self, params: Params, server: Server, received: Received, round: Round) -> tuple[Params, Server]:
        if self.server_step is not None:
            return self._step(params, received.total), server
        total, weight, memory, got = server.total, server.weight, server.memory, received.total
        if server.last is not None:  # since the last round that had messages, which need not be the last
            total, weight = self._faded(total, weight, round.number - server.last)
        total = total.add(got["change"])
        if "before" in got:
            weight = weight.change(got["before"], share=received.weight)
        new_weight = weight.change(got["weight"], share=received.weight)
        current = self.unselected_penalty == "current"
        new_params = self._average(params, total.value, weight.value if current else new_weight.value)
        if current:
            total = total.add(got["after"])
        if self._finds_out:
            change = optax.tree.sub(got["change"], trees.scale(got["before" if current else "weight"], params))
            memory = self.forgetting.learn(server.memory, got["said"], change, received.count, new_weight.value)
            total, new_weight = self._faded(total, new_weight, memory.forgotten - server.memory.forgotten)
        level = None if server.level is None else Apart(server.level.value.moved(*got["level"]))
        return new_params, Server(total, new_weight, None if server.last is None else round.number, memory, level)

    def _faded(self, total: RunningSum, weight: PositiveSum, steps: Array) -> tuple[RunningSum, PositiveSum]:
        """The sums after so many steps of forgetting."""
        factor = fading.fade(self.forgetting, steps, weight.value.dtype)
        return total.scale(factor), weight.scale(factor)

    def _average(self, z: Any, total: Any, weight: Array) -> Any:
        """(3.1): z_hat = total / weight, then the memory z+ = (z_hat + delta z) / (1 + delta), then the prox."""
        delta = self.delta
        mixed = jax.tree.map(lambda t, z: (t / weight + delta * z) / (1 + delta), total, z)
        if self.server_prox is not None:
            mixed = self.server_prox(mixed, 1 / ((1 + delta) * weight))
        return optax.tree.cast_like(mixed, z)

    def _step(self, z: Any, total: Any) -> Any:
        """Gong et al.: a step along the mean change of what the selected clients have sent, (u - lambda / beta)."""
        length = self.server_step / total["weight"]
        return jax.tree.map(lambda z, change: z + (length * change).astype(z.dtype), z, total["change"])

    @property
    def counts_alike(self) -> bool:
        """Whether a message counts the same however old it is, and before a client's first one as if there were one."""
        return self.heard == "all" and self.forgetting is None

    @property
    def _finds_out(self) -> bool:
        """Whether the server finds out how much to forget."""
        return isinstance(self.forgetting, fading.AutoForgetting)

    @property
    def knows_who_returns(self) -> bool:
        """Whether the server counts how many of its clients it has heard before."""
        return isinstance(self.forgetting, fading.AutoForgetting) and self.forgetting.returning

    def returned(self, server: Server) -> Array:
        """The share of a round's clients that were heard before, averaged over rounds."""
        memory: Any = server.memory
        return memory.statistics.value.returned

    def _share(self, row: Rows, now: Any) -> Array:
        """The share of a client's last message that still counts: in round `now`, or when so much is forgotten."""
        dtype, share = row["penalties"].dtype, jnp.ones((), row["penalties"].dtype)
        if self.forgetting is not None:
            then = row["forgotten" if self._finds_out else "message_rounds"]
            share = fading.fade(self.forgetting, now - then, dtype)
        return jnp.where(row["message_rounds"] < 0, 0, share) if self.heard == "only" else share

    def worn(self, server: Server) -> Array:
        return server.weight.worn

    def count(self, server: Server, row: Rows, client: Client) -> Server:
        """The sums with what the server holds of one more client: counted u - lambda, and counted, or its share."""
        if self.server_step is not None:
            return server
        now = server.memory.forgotten if self._finds_out else server.last
        alpha = client.weight if self.counts_alike else client.weight * self._share(row, now)
        weight = alpha * row["sent_penalties"]
        total = server.total.add(trees.scale(weight, row["client_params"]))
        # The duals stay when penalties shrink, and cancel each other: of them no digit may be lost.
        return Server(
            total.add_product(-alpha, row["duals"]), server.weight.add(weight), server.last, server.memory, server.level
        )


def _opened(sent: Any) -> Sent:
    """What the server sent, whether or not it was z alone."""
    return sent if isinstance(sent, Sent) else Sent(sent)
