"""The paper's algorithms as plain NumPy loops, in double precision: one client after another, all sums in full.

Independent of the package but for the order of an epoch's rows, which is an argument. The losses are least
squares, f_i(w) = 1 / (2 N_i) sum (x'w - y)^2 + gamma / 2 ||w||^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Settings:
    method: str  # "fedavg_selected", "fedavg_all", "fedprox", "admm"
    learning_rate: np.ndarray  # [clients]
    max_epochs: np.ndarray  # [clients]
    batch_size: int | None
    gamma: float
    penalty: np.ndarray  # [clients] beta_i^0
    delta: float = 0.0
    criterion: str = "none"  # "none", "constant", "decaying", "squared", "summable", "noise", "relative"
    reference: str = "server"
    residual: str = "exact"
    c: np.ndarray | None = None  # [clients]
    sigma: float | None = None
    sigma_factor: float = 0.999
    floor: float = 0.0
    eps: float | np.ndarray = 0.0  # or [clients], as factor and power
    factor: float | np.ndarray = 1.0
    power: float | np.ndarray = 2.0
    adaptive: bool = False
    mu: float = 5.0
    tau: float = 2.0
    rule: str = "balancing"  # "balancing", "relative", "spectral": of an adaptive penalty
    until: int | np.ndarray | None = None  # or [clients]
    correlation: float = 0.2
    slack: float = 1e10
    unselected: str = "current"
    heard: str = "all"
    forgetting: float | str = 1.0


@dataclass
class Trajectory:
    server: list = field(default_factory=list)
    epochs: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    criterion_samples: list = field(default_factory=list)
    reasons: list = field(default_factory=list)
    clients: np.ndarray | None = None
    duals: np.ndarray | None = None
    penalties: np.ndarray | None = None
    factors: list = field(default_factory=list)  # what is left of a message after a round, with forgetting="auto"


def run(
    xs: list[np.ndarray],
    ys: list[np.ndarray],
    alpha: np.ndarray,
    z: np.ndarray,
    cohorts: np.ndarray,
    settings: Settings,
    order: Callable[[int, int, int], np.ndarray],
) -> Trajectory:
    """`order(round, client, epoch)` gives the order of that epoch's rows."""
    s, m = settings, len(xs)
    u = np.tile(z, (m, 1))
    lam = np.zeros((m, len(z)))
    beta = s.penalty.astype(float).copy()
    sent = beta.copy()
    heard_in = np.full(m, -1)  # the round of each client's last message
    left, seen = (
        np.ones(m),
        [],
    )  # where the server finds out how much to forget: what counts of each message; each round's numbers
    judged: list[list] = [[] for _ in range(m)]  # each client's (u, lambda), as often as its penalty was judged
    out = Trajectory(server=[z])
    for k, cohort in enumerate(cohorts):  # a round without clients changes nothing
        if not len(cohort):
            out.server.append(z)
            continue
        beta_k, u_k, lam_k, sent_k, z_k = beta.copy(), u.copy(), lam.copy(), sent.copy(), z
        known = (heard_in >= 0) | (s.heard == "all")
        solves = []
        for i in cohort:
            linear = lam[i] if s.method == "admm" else np.zeros_like(z)
            penalty = 0.0 if s.method.startswith("fedavg") else beta_k[i]
            solve = _solve(s, xs[i], ys[i], z, u_k[i], linear, penalty, k, i, order)
            solves.append(solve)
            u[i] = solve[0]
            if s.method == "admm":
                lam[i] = lam[i] - beta_k[i] * (u[i] - z)
                sent[i] = beta_k[i]
                heard_in[i] = k
                idle = solve[1] == 0 and s.rule != "balancing"
                if s.adaptive and not idle and (s.until is None or len(judged[i]) < np.broadcast_to(s.until, m)[i]):
                    beta[i] = _adapted(s, beta_k[i], u[i], u_k[i], z, lam[i], judged[i])
                    judged[i].append((u[i].copy(), lam[i].copy()))
        if s.method == "admm":
            used = beta_k if s.unselected == "current" else sent
            if isinstance(s.forgetting, str):
                held_shares, left[cohort] = left * known, 1.0
                share = alpha * left
            else:
                share = alpha * s.forgetting ** (k - heard_in.astype(float))
            share = np.where(heard_in < 0, 0, share) if s.heard == "only" else share
            z_hat = sum(share[i] * (used[i] * u[i] - lam[i]) for i in range(m)) / sum(share * used)
            z = (z_hat + s.delta * z) / (1 + s.delta)
            if isinstance(s.forgetting, str):
                was = sent_k if s.unselected == "sent" else beta_k
                old = [held_shares[i] * (was[i] * (u_k[i] - z_k) - lam_k[i]) for i in cohort]
                new = [used[i] * (u[i] - z_k) - lam[i] for i in cohort]
                after = sum(share * (sent if s.unselected == "sent" else beta))
                returned = known[cohort] if s.forgetting == "returning" else np.ones(len(cohort))
                left *= _kept(np.array(old), np.array(new), alpha[cohort], used[cohort], after, returned, seen)
                out.factors.append(left[cohort[0]])
        elif s.method == "fedavg_all":
            z = sum(alpha[i] * u[i] for i in range(m))
        else:
            z = sum(alpha[i] * u[i] for i in cohort) / sum(alpha[i] for i in cohort)
        out.server.append(z)
        out.epochs.append([solve[1] for solve in solves])
        out.samples.append([solve[2] for solve in solves])
        out.criterion_samples.append([solve[3] for solve in solves])
        out.reasons.append([solve[4] for solve in solves])
    out.clients, out.duals, out.penalties = u, lam, beta
    return out


def _kept(old, new, alpha, beta, total, returned, seen):
    """What the server keeps of all messages, from what its cohort said before and says now [cohort, ...], less z."""
    c, d, w = (new - old) / beta[:, None], new / beta[:, None], alpha * beta
    if len(c) > 1:
        pairs = [(w[i] * w[j], c[i] @ c[j]) for i in range(len(c)) for j in range(len(c)) if i != j]
        drift = sum(weight * product for weight, product in pairs) / sum(weight for weight, _ in pairs)
        square = sum(w[i] * d[i] @ d[i] for i in range(len(d))) / sum(w)
        seen.append((drift, square, sum(w * returned) / sum(w)))
    if not seen:
        return 1.0
    drift, square, came_back = np.average(seen, axis=0, weights=np.arange(len(seen)) + 1)
    clients = total * sum(w) / sum(w**2)
    ratio = clients * drift / (square - drift) if drift > 0 else 0
    with np.errstate(divide="ignore"):
        return 2.0 ** -(min(np.round(1024 * (np.log2(1 + ratio) - np.log2(came_back))), 20 * 1024) / 1024)


def _adapted(s, beta, u, u_old, z, lam, judged):
    """A client's penalty after its solve."""
    norm = np.linalg.norm
    if s.rule == "spectral":
        if not judged:
            return beta
        du, dl = u - judged[-1][0], lam - judged[-1][1]
        if norm(du) == 0 or norm(dl) == 0 or du @ dl / (norm(du) * norm(dl)) <= s.correlation:
            return beta
        steep, flat = dl @ dl / (du @ dl), du @ dl / (du @ du)
        most = 1 + s.slack / len(judged) ** 2
        return min(max(flat if flat / steep > 0.5 else steep - flat / 2, beta / most), beta * most)
    p, d = beta * norm(u - u_old), norm(u - z)
    if s.rule == "relative":
        p, d = p / (norm(lam) or 1), d / (max(norm(u), norm(z)) or 1)
    return beta * s.tau if d > s.mu * p else beta / s.tau if p > s.mu * d else beta


def _solve(s, x, y, z, u_old, linear, penalty, k, i, order):
    """(parameters, epochs, gradient samples, the criterion's share, reason)."""
    n = len(x)
    batch = n if s.batch_size is None else s.batch_size
    samples, criterion_samples = 0, 0

    def e(w, rows):  # (3.6) on some rows
        a, b = x[rows], y[rows]
        return a.T @ (a @ w - b) / len(rows) + s.gamma * w - linear + penalty * (w - z)

    everything = np.arange(n)
    reference_norm = np.nan
    if s.criterion == "relative":
        if s.reference == "client":
            reference_norm = np.linalg.norm(e(u_old, everything))
            samples, criterion_samples = n, n
        else:
            # Where the residual at z is looked at anyway, it is counted there.
            reference_norm = np.linalg.norm(e(z, everything))
    sigma = s.sigma
    if s.criterion == "relative" and sigma is None:
        sigma = s.sigma_factor * np.sqrt(2) / (np.sqrt(2) + np.sqrt(penalty / s.c[i]))
    eps, factor, power = (np.broadcast_to(value, s.learning_rate.shape)[i] for value in (s.eps, s.factor, s.power))
    tolerance = {
        "none": -np.inf,
        "constant": eps,
        "decaying": eps * factor**k,
        "squared": np.sqrt(eps * factor**k),
        "summable": eps / (k + 1) ** power,
        "noise": np.nan,  # it depends on the batches
        "relative": np.nan if s.criterion != "relative" else sigma * reference_norm,
    }[s.criterion]

    def verdict(parts, rows):
        """For residuals of a pass's batches and the rows of each."""
        shares = [len(part) / n for part in rows]
        mean = sum(share * part for share, part in zip(shares, parts, strict=True))
        norm, allowed = np.linalg.norm(mean), tolerance
        if s.criterion == "noise" and len(parts) > 1:
            spread = sum(share * np.sum((part - mean) ** 2) for share, part in zip(shares, parts, strict=True))
            allowed = factor * np.sqrt(spread / (len(parts) - 1))
        return "criterion" if norm <= allowed else "floor" if norm <= s.floor else None

    def batches(rows):
        return [rows[start : start + batch] for start in range(0, n, batch)]

    def exact_verdict(w):
        rows = batches(order(k, i, epochs)) if s.criterion == "noise" and not full else [everything]
        return verdict([e(w, part) for part in rows], rows)

    w, epochs = z.copy(), 0
    full = s.batch_size is None
    exact = s.residual == "exact" or full
    # Without an exact residual there is a look before the first epoch only where e(z) is needed as reference.
    look_first = s.criterion != "none" and (exact or (s.criterion == "relative" and s.reference == "server"))
    while True:
        if s.criterion != "none" and (look_first if epochs == 0 else exact):
            if not full or epochs < s.max_epochs[i]:
                samples += n
                criterion_samples += n
            reason = exact_verdict(w)
            if reason:
                return w, epochs, samples, criterion_samples, reason
            if full:
                samples -= n  # the next step uses this gradient: it is counted there
                criterion_samples -= n
        rows = batches(everything if full else order(k, i, epochs))
        steps = []
        for chosen in rows:
            steps.append(e(w, chosen))
            w = w - s.learning_rate[i] * steps[-1]
            samples += len(chosen)
        epochs += 1
        if epochs >= s.max_epochs[i]:
            return w, epochs, samples, criterion_samples, "maximum"
        if s.criterion != "none" and not exact and verdict(steps, rows):
            if s.residual == "epoch_mean":
                return w, epochs, samples, criterion_samples, verdict(steps, rows)
            samples += n
            criterion_samples += n
            reason = exact_verdict(w)
            if reason:
                return w, epochs, samples, criterion_samples, reason
