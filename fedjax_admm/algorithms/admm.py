"""FedADMM, FedADMM-In and FedADMM-InSa: one method with different parts.

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

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import Apart, PositiveSum, RunningSum
from ..core.types import Params, Rows
from ..core.vocabulary import Client, Clients, Received, Round, Solution, Subproblem
from . import criteria, fading, penalties, prox
from .criteria import Criterion
from .local_solver import LocalSolver
from .penalties import Evidence, PenaltyRule

__all__ = ["fedadmm", "fedadmm_in", "fedadmm_insa"]


@record
class Server:
    """The server's sums over all clients, with the penalty by which it counts each of them.

    Where messages fade, or clients that were not heard from do not count, each has a share s_i besides, else 1.
    """

    total: RunningSum  # [...] sum_i alpha_i s_i (beta_i u_i - lambda_i)
    weight: PositiveSum  # sum_i alpha_i s_i beta_i
    last: Any = None  # int32, the round of which these are the sums, -1 at the start; None where none is needed
    memory: Any = None  # `fading.Memory`, where the server finds out how much to forget
    level: Any = None  # `penalties.Level`, where the penalty rule has one


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
        adaptive = "" if isinstance(self.penalty_rule, penalties.Constant) else "Sa"
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
        level = Apart(penalties.Level.start(weight.dtype)) if penalties.pools(self.penalty_rule) else None
        return Server(RunningSum.of(total), PositiveSum.of(weight), last, memory, level)

    def start(self, params: Params, client: Client) -> Rows:
        beta = jnp.asarray(self.penalty, trees.scalar_dtype(params))
        row = {
            "client_params": params,
            "duals": optax.tree.zeros_like(params),
            "penalties": beta,
            "sent_penalties": beta,
        }
        memory = penalties.start(self.penalty_rule, params)
        row |= {"rule": memory} if memory else {}
        row |= {} if self._counts_alike else {"message_rounds": jnp.int32(-1)}
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
        new_beta, memory = penalties.adapt(self.penalty_rule, beta, seen, row.get("rule", {}))  # (3.15)

        # What the server holds of this client changes from counted * u - lambda, or the share of it that still counts,
        # to sent * u+ - lambda+. With "current" it is counted with its new penalty only from after this round's average
        # on.
        current = self.unselected_penalty == "current"
        sent_beta = counted if current else beta
        held, held_duals = counted if self.server_step is None else beta, row["duals"]
        if not self._counts_alike:
            share = self._share(row, now)
            held, held_duals = share * counted, trees.scale(share, row["duals"])
        # Each difference by itself: beside duals of any size, what a small penalty changes would be rounded away.
        moved = optax.tree.sub(trees.scale(sent_beta, u), trees.scale(held, row["client_params"]))
        message: dict[str, Any] = {"change": optax.tree.sub(moved, optax.tree.sub(duals, held_duals))}
        if current:
            growth = new_beta - counted
            message |= {"weight": growth, "after": trees.scale(growth, u)}
            message |= {} if self._counts_alike else {"before": counted - held}
        else:
            message["weight"] = sent_beta - held if self.server_step is None else beta
        kept = {
            "client_params": u,
            "duals": duals,
            "penalties": new_beta,
            "sent_penalties": new_beta if current else beta,
        }
        kept |= {"rule": memory} if "rule" in row else {}
        kept |= {} if self._counts_alike else {"message_rounds": round.number}
        if self._finds_out:
            fresh = optax.tree.sub(trees.scale(sent_beta, u), duals)
            past = optax.tree.sub(trees.scale(held, row["client_params"]), held_duals)
            known = (row["message_rounds"] >= 0) | (self.heard == "all")
            message["said"] = self.forgetting.say(z, sent_beta, fresh, past, held, client.weight, known)
            kept["forgotten"] = now
        rule: Any = self.penalty_rule
        if penalties.pools(rule):
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
    def _counts_alike(self) -> bool:
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
        alpha = client.weight if self._counts_alike else client.weight * self._share(row, now)
        weight = alpha * row["sent_penalties"]
        total = server.total.add(trees.scale(weight, row["client_params"]))
        # The duals stay when penalties shrink, and cancel each other: of them no digit may be lost.
        return Server(
            total.add_product(-alpha, row["duals"]), server.weight.add(weight), server.last, server.memory, server.level
        )


def _opened(sent: Any) -> Sent:
    """What the server sent, whether or not it was z alone."""
    return sent if isinstance(sent, Sent) else Sent(sent)


def fedadmm(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    delta: float = 0.0,
    criterion: Criterion | None = None,
    penalty_rule: PenaltyRule | None = None,
    unselected_penalty: str | None = None,
    heard: str = "all",
    forgetting: float | str = 1.0,
    server_step: float | None = None,
    server_prox: Any = None,
    dual_step: Any = 1.0,
    start: str = "server",
    local_rounds: int = 1,
) -> FedADMM:
    """FedADMM (Algorithm 1), and by its arguments every mixture of the paper's parts.

    Each selected client solves its local problem, starting from z^k, until its maximum of epochs or until the
    criterion holds, and then updates its dual:

        min_u f_i(u) - <lambda_i, u - z^k> + beta_i / 2 ||u - z^k||^2,
        lambda_i+ = lambda_i - beta_i (u_i+ - z^k).

    The server averages what it knows of all clients, and keeps a little of its previous model:

        z_hat = sum_i alpha_i (beta_i u_i - lambda_i) / sum_i alpha_i beta_i,
        z^{k+1} = (z_hat + delta z^k) / (1 + delta).

    Args:
        local: How a client solves its subproblem.
        penalty: The initial penalty beta_i^0 above 0, a number or one per client [clients].
        delta: The server's memory, at least 0 in the paper. Between -1/2 and 0 the server over-relaxes: it goes beyond
            z_hat, z^{k+1} = z^k + (z_hat - z^k) / (1 + delta).
        criterion: When a local solve may stop early; by default it runs to its maximum of epochs.
        penalty_rule: How beta_i changes after a solve; by default not at all.
        unselected_penalty: The penalty with which the server counts a client that was not selected: its "current" one
            (Algorithm 3 taken literally; u and lambda have to be sent separately, so 2 n + 1 floats up) or the one
            last "sent" (n + 1 floats up). By default "sent" without a penalty rule, when the two are the same, and
            otherwise "current".
        heard: Which clients the server counts: "all" from the start, as in the paper, with z^0 for a client that was
            never selected; or "only" those that have sent something. With large populations "all" slows the server
            down: a round moves it at most by the cohort's share of all clients. With every client in every round there
            is no difference.
        forgetting: How the server forgets old messages: a number, "auto" or "returning". A number, above 0 and at most
            1, multiplies the weight of every remembered message in each round; 1 forgets nothing. Below 1 the first
            rounds are faster, but z does not converge: it keeps the noise from the choice of clients. With "auto" the
            server chooses the number in each round: small while new messages agree that it should move on, and near 1
            once they only disagree among themselves (the rule is in `fading`). This takes 4 more floats up and 1 more
            down. "returning" multiplies the number of "auto" by the share of the cohort that was heard before, so where
            clients never return nothing is remembered. It is meant for methods whose result is `averaged`, and takes 5
            more floats up and 1 more down. If heard or forgetting is not the paper's, "current" penalties need 2 n + 2
            floats up.
        server_step: eta above 0 of Gong et al., whose server keeps no sums but moves along the selected clients' mean
            change: z^{k+1} = z^k + eta sum alpha_i beta_i Delta_i / sum alpha_i beta_i, where Delta_i is the change of
            u_i - lambda_i / beta_i. With equal weights and penalties, eta = |S| / m gives the average over all m
            clients, which is also what None computes. A larger eta is faster at first but does not converge.
        server_prox: The proximal map of a term g that is added to the clients' losses (Wang, Marella and Anderson):
            `fa.prox.l1(weight)`, `l2`, `box`, `nonnegative` or a function (params, step) -> params. It is applied to
            z^{k+1} with step 1 / ((1 + delta) sum alpha_i beta_i).
        dual_step: a, at least 0, a number or one per client [clients]: lambda_i+ = lambda_i - a beta_i (u_i+ - z^k).
        start: Where a solve starts: at the "server"'s z^k, or at the "client"'s own u_i^k.
        local_rounds: k0 of Zhou and Li: how many times a selected client solves and updates its dual in a round, with
            the same z^k, before it sends. Each solve has up to `max_epochs` epochs. The larger k0, the closer a round
            with all clients is to a step of gradient descent, z^{k+1} = z^k - sum alpha_i grad f_i(z^k) / sum alpha_i
            beta_i. A decaying tolerance decays with the rounds, not within one.

    >>> fedadmm(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0).delta
    0.0
    """
    if unselected_penalty is None:
        constant = penalty_rule is None or penalty_rule == penalties.constant() or penalties.pools(penalty_rule)
        unselected_penalty = "sent" if constant or server_step is not None else "current"
    made = FedADMM(
        local=checks.part("local", local, ("step",), "fa.LocalSolver(...)"),
        criterion=criteria.checked(criterion),
        penalty_rule=checks.part("penalty_rule", penalty_rule or penalties.constant(), ("__call__",), "fa.penalties"),
        penalty=checks.number("penalty", penalty, above=0, per_client=True),
        delta=checks.number("delta", delta, above=-0.5),
        unselected_penalty=checks.choice("unselected_penalty", unselected_penalty, ("current", "sent")),
        heard=checks.choice("heard", heard, ("all", "only")),
        forgetting=fading.checked(forgetting),
        server_step=None if server_step is None else checks.number("server_step", server_step, above=0),
        server_prox=prox.checked(server_prox),
        dual_step=checks.number("dual_step", dual_step, at_least=0, per_client=True),
        solve_start=checks.choice("start", start, ("server", "client")),
        local_rounds=None if local_rounds == 1 else checks.integer("local_rounds", local_rounds, at_least=1),
    )
    _check_together(made)
    return made


def _check_together(made: FedADMM) -> None:
    """Parts that leave each other nothing to do are refused."""
    remembers = not made._counts_alike
    others = {
        "delta": not (isinstance(made.delta, float) and made.delta == 0),
        "heard or forgetting": remembers,
        "server_prox": made.server_prox is not None,
        'unselected_penalty="current"': made.unselected_penalty == "current",
    }
    for name, given in others.items():
        if given and made.server_step is not None:
            raise ValueError(f"server_step is of a server without memory of its clients: leave {name} out")
    if penalties.pools(made.penalty_rule):
        kind = type(made.penalty_rule).__name__.lower()
        if made.criterion.reference != "server":
            raise ValueError(
                f"penalty_rule {kind} measures at z: give criterion=fa.criteria.relative_residual(sigma=0.5)"
            )
        if made.unselected_penalty == "current":
            raise ValueError(f'penalty_rule {kind} has one level for all: it needs unselected_penalty="sent"')
        if made.local_rounds is not None:
            raise ValueError(f"penalty_rule {kind} measures a round's one solve: leave local_rounds out")
        if made.server_step is not None:
            raise ValueError(f"server_step is of a server that finds nothing out: leave penalty_rule {kind} out")
    if made.server_prox is not None and remembers:
        raise ValueError('server_prox weighs its term against all clients: it needs heard="all" and forgetting=1')


def fedadmm_in(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    c: Any = 0.01,
    delta: float = 0.01,
    reference: str = "server",
    residual: str = "exact",
    sigma_factor: float = 0.999,
    criterion: Criterion | None = None,
    heard: str = "all",
    forgetting: float | str = 1.0,
) -> FedADMM:
    """FedADMM-In (Algorithm 2): FedADMM with the paper's stopping criterion (3.7) for local solves.

    Args:
        local: How a client solves its subproblem.
        penalty: beta_i above 0, a number or one per client [clients].
        c: The modulus of strong convexity c_i of the clients' losses, a number or one per client [clients]. A larger c
            stops earlier.
        delta: The server's memory, above -1/2 (see `fedadmm`).
        reference: Where the residual is measured that the criterion compares with: "server", z^k, or "client", u_i^k.
        residual: How the residual is measured: "exact", "epoch_mean" or "verified" (see `criteria`).
        sigma_factor: Sigma as a fraction of its bound sqrt2 / (sqrt2 + sqrt(beta / c)), below 1.
        criterion: Another criterion instead of (3.7); c, reference, residual and sigma_factor are then not used.
        heard: Whether the server counts "all" clients from the start, or "only" those that have sent something; see
            `fedadmm`.
        forgetting: The factor by which a message counts less in each later round, or "auto"; see `fedadmm`.

    >>> fedadmm_in(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0, reference="client").criterion.c
    0.01
    """
    relative = criteria.relative_residual(c=c, reference=reference, residual=residual, sigma_factor=sigma_factor)
    criterion = relative if criterion is None else criterion
    return fedadmm(local, penalty, delta=delta, criterion=criterion, heard=heard, forgetting=forgetting)


def fedadmm_insa(
    local: LocalSolver,
    penalty: Any = 1.0,
    *,
    c: Any = 0.01,
    delta: float = 0.01,
    mu: float = 5.0,
    tau: float = 2.0,
    unselected_penalty: str = "current",
    reference: str = "server",
    residual: str = "exact",
    sigma_factor: float = 0.999,
    criterion: Criterion | None = None,
    heard: str = "all",
    forgetting: float | str = 1.0,
) -> FedADMM:
    """FedADMM-InSa (Algorithm 3): FedADMM-In with penalties that adapt to balance gap and movement (3.15).

    The criterion's sigma follows each client's current penalty.

    Args:
        mu: The penalty changes if the client's gap to the server and penalty * movement differ by more than this
            factor, above 1.
        tau: The factor by which the penalty changes, above 1.
        unselected_penalty: The penalty with which the server counts a client that was not selected: its "current" one
            or the one last "sent"; see `fedadmm`.

    The other arguments are `fedadmm_in`'s.

    >>> fedadmm_insa(LocalSolver(learning_rate=0.1, max_epochs=5), penalty=1.0).penalty_rule.tau
    2.0
    """
    relative = criteria.relative_residual(c=c, reference=reference, residual=residual, sigma_factor=sigma_factor)
    return fedadmm(
        local,
        penalty,
        delta=delta,
        criterion=relative if criterion is None else criterion,
        penalty_rule=penalties.residual_balancing(mu, tau),
        unselected_penalty=unselected_penalty,
        heard=heard,
        forgetting=forgetting,
    )
