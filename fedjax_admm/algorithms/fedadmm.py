"""FedADMM, FedADMM-In and FedADMM-InSa as a user makes them: the method of `admm` with the parts that each has."""

from __future__ import annotations

from typing import Any

from ..core import checks
from . import criteria, fading, penalties, prox
from .admm import FedADMM
from .criteria import Criterion
from .local_solver import LocalSolver
from .penalties import PenaltyRule
from .penalties.level import pools

__all__ = ["fedadmm", "fedadmm_in", "fedadmm_insa"]


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
        constant = penalty_rule is None or penalty_rule == penalties.constant() or pools(penalty_rule)
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
    remembers = not made.counts_alike
    others = {
        "delta": not (isinstance(made.delta, float) and made.delta == 0),
        "heard or forgetting": remembers,
        "server_prox": made.server_prox is not None,
        'unselected_penalty="current"': made.unselected_penalty == "current",
    }
    for name, given in others.items():
        if given and made.server_step is not None:
            raise ValueError(f"server_step is of a server without memory of its clients: leave {name} out")
    if pools(made.penalty_rule):
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
