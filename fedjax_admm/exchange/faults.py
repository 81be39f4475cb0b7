"""Faults that any algorithm can be run with: clients that drop out or send rubbish, and a server that defends itself.

A round asks twice: before the solves, who is away (`Faults.away`), and after them, what the server received
(`Faults.received`). All draws depend on the seed, the round and the client alone, so neither lanes nor devices nor
where the rows live change who fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks, randomness, trees
from ..core.record import record, static
from .cohorts import check_cohort

# Round numbers are below 2^31, so keys folded with these are none of a round's.
_DROPOUT_STREAM, _NOISE_STREAM = 2**31, 2**31 + 1
GROSS = 10.0  # times clip_norm: a longer update is an offence where there is quarantine


@record
class Faults:
    """Which clients fail, how, and what the server does about it. What is None is off.

    dropout: the probability that a selected client drops out of a round before it does anything; a number, one per
        client [clients], or a table [rounds, clients], with zeros and ones a given schedule.
    corruption: what corrupted clients send in place of their parameters u: "scale", z + strength (u - z); "sign_flip",
        z - strength (u - z); "noise", u + strength * standard normal; "constant", strength in every place.
    corrupted: the numbers of the clients that do so whenever they take part.
    strength: of the corruption; by default 10 for "scale", NaN for "constant", else 1.
    clip_norm: the server shortens updates u - z to this norm at most; choose more than sound clients need.
    quarantine_after: a client is left out for the rest of the run after so many offences: solves or updates that were
        not finite, or updates more than ten times as long as clip_norm, which are then kept out.

    A client that drops out or is in quarantine computes, receives and sends nothing and keeps its former rows, as does
    one whose solve or update is kept out; the server goes on with the others, and if there are none it stays as it is.
    A corrupted client solves its subproblem soundly and corrupts what it sends; server and client then both go on from
    what was received, clipped: duals, controls and the like follow from that. A penalty stays as it is where the update
    was clipped, since the rule would compare the clip's length with itself and could double the penalty for ever.

    With both defences on, whatever a client sends is either an offence or moves it by `clip_norm` at most. How far the
    server can be led in k rounds then does not depend on what is sent: by k clip_norm where models are averaged, by
    k (k + 3) / 2 clip_norm where duals of a constant penalty add the pulls up. To hold it closer, a server would have
    to tell a client that pulls a little the same way for ever from one whose optimum is far away; no limit on updates
    does.

    `Solves.stop_reason` says who and when: "dropped", "quarantined", "failed", "corrupted" (used) or "rejected" (kept
    out), and the history has a column with the number of each.

    >>> Faults(dropout=0.3, corruption="sign_flip", corrupted=[0, 7], clip_norm=10).strength
    1.0
    """

    dropout: Any = None
    corruption: str | None = static(default=None)
    corrupted: Any = None
    strength: Any = None
    clip_norm: Any = None
    quarantine_after: Any = None

    def __post_init__(self) -> None:
        def put(name: str, check: Callable, *arguments: Any, **bounds: Any) -> None:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check(name, getattr(self, name), *arguments, **bounds))

        put("dropout", checks.number, at_least=0, at_most=1, per_client=True, per_round=True)
        put("corruption", checks.choice, tuple(CORRUPTIONS))
        put("corrupted", _client_numbers)
        put("strength", _any_number)
        put("clip_norm", checks.number, above=0)
        put("quarantine_after", checks.integer, at_least=1)
        if (self.corruption is None) != (self.corrupted is None):
            raise ValueError("corruption says what clients send and corrupted which of them: give both, or neither")
        if self.corruption is None and self.strength is not None:
            raise ValueError(f"strength is the corruption's, got {self.strength} without one: give corruption too")
        if self.corruption is not None and self.strength is None:
            object.__setattr__(self, "strength", CORRUPTIONS[self.corruption].strength)

    @property
    def any(self) -> bool:
        """Whether anything is on."""
        return any(x is not None for x in (self.dropout, self.corruption, self.clip_norm, self.quarantine_after))

    def check(self, num_clients: int) -> None:
        """What is given per client must fit their number."""
        if self.dropout is not None:
            checks.client_axis("dropout", self.dropout, num_clients)
        if self.corrupted is not None:
            check_cohort(self.corrupted, num_clients, "corrupted")

    def check_rounds(self, rounds: int) -> None:
        """A schedule must reach to the last round."""
        if np.ndim(self.dropout) == 2 and rounds > len(self.dropout):
            raise ValueError(f"dropout is a schedule of {len(self.dropout)} rounds, but rounds is {rounds}")

    def away(self, key: Array, round: Array, ids: Array, offences: Array | None) -> tuple[Array, Array]:
        """Which of clients `ids` drop out of this round, and which are in quarantine, [ids] each and never both."""
        dropped = quarantined = jnp.zeros(ids.shape, bool)
        if offences is not None:
            quarantined = offences >= self.quarantine_after
        if self.dropout is not None:
            probability = jnp.asarray(self.dropout)
            probability = trees.per_client(probability[round] if probability.ndim == 2 else probability, ids)
            draws = jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32))
            dropped = draws(_keys(key, _DROPOUT_STREAM, round, ids)) < probability.astype(jnp.float32)
        return dropped & ~quarantined, quarantined

    def received(self, key: Array, round: Array, ids: Array, z: Any, u: Any) -> Received:
        """What the server has of clients `ids` that solved for `u` [ids, ...]."""
        corrupted = jnp.zeros(ids.shape, bool)
        if self.corruption is not None:
            corrupted = jnp.any(ids[:, None] == self.corrupted[None, :], axis=1)
            send = jax.vmap(CORRUPTIONS[self.corruption].sent, in_axes=(0, None, 0, None))
            u = trees.where(corrupted, send(_keys(key, _NOISE_STREAM, round, ids), z, u, self.strength), u)
        update = trees.minus(u, z)
        accepted = jax.vmap(trees.all_finite)((u, update))
        clipped = jnp.zeros(ids.shape, bool)
        if self.clip_norm is not None:
            shorter, clipped, gross = jax.vmap(clip, in_axes=(0, None))(update, self.clip_norm)
            u = trees.where(clipped, jax.tree.map(lambda z, d: z[None] + d, z, shorter), u)
            accepted &= ~gross if self.quarantine_after is not None else True
        return Received(u, corrupted, accepted, clipped)


class Received(NamedTuple):
    """What came to the server."""

    params: Any  # [cohort, ...] u, corrupted and clipped; anything where it is not accepted
    corrupted: Array  # [cohort] bool
    accepted: Array  # [cohort] bool
    clipped: Array  # [cohort] bool


class Corruption(NamedTuple):
    """A way to corrupt one client's parameters, and its usual strength."""

    sent: Callable[[Array, Any, Any, Array], Any]  # key, z, u, strength -> what is sent
    strength: float


def _scale(key: Array, z: Any, u: Any, strength: Array) -> Any:
    return jax.tree.map(lambda z, u: z + strength.astype(u.dtype) * (u - z), z, u)


def _sign_flip(key: Array, z: Any, u: Any, strength: Array) -> Any:
    return _scale(key, z, u, -strength)


def _noise(key: Array, z: Any, u: Any, strength: Array) -> Any:
    noise = optax.tree.random_like(key, u, sampler=jax.random.normal)
    return jax.tree.map(lambda u, n: u + strength.astype(u.dtype) * n, u, noise)


def _constant(key: Array, z: Any, u: Any, strength: Array) -> Any:
    return jax.tree.map(lambda u: jnp.full_like(u, strength.astype(u.dtype)), u)


CORRUPTIONS = {
    "scale": Corruption(_scale, 10.0),
    "sign_flip": Corruption(_sign_flip, 1.0),
    "noise": Corruption(_noise, 1.0),
    "constant": Corruption(_constant, np.nan),
}


def clip(update: Any, most: Array) -> tuple[Any, Array, Array]:
    """One update [...] shortened to norm `most`: (update, whether it was longer, whether grossly so).

    Squares of large numbers overflow (1e38 is finite in single precision), so the norm is taken of update / largest.

    >>> shorter, longer, _ = clip({"w": jnp.array([3e5, 4e5], jnp.float32)}, jnp.float32(10.0))
    >>> bool(jnp.allclose(shorter["w"], jnp.array([6.0, 8.0]))), bool(longer)
    (True, True)
    """
    dtype = trees.scalar_dtype(update)
    wide = jax.tree.map(lambda leaf: leaf.astype(dtype), update)
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in jax.tree.leaves(wide)]))
    largest = jnp.maximum(largest, jnp.finfo(dtype).tiny)
    root = 1 / jnp.sqrt(largest)  # in two steps, since 1 / 1e38 is rounded to zero
    direction = jax.tree.map(lambda leaf: (leaf * root) * root, wide)
    length = optax.tree.norm(direction)  # from about 1 to the root of the number of parameters
    shorter = optax.tree.cast_like(optax.tree.scale(most / length, direction), update)
    longer = length > most / largest
    return trees.where(longer, shorter, update), longer, length > GROSS * (most / largest)


def _keys(key: Array, stream: int, round: Array, ids: Array) -> Array:
    """Keys [ids] of their own for each stream, round and client."""
    words = randomness.client_keys(jax.random.fold_in(key, np.uint32(stream)), round, ids)
    return jax.random.wrap_key_data(words, impl=randomness.KEY_IMPLEMENTATION)


def _client_numbers(name: str, value: Any) -> np.ndarray:
    return check_cohort(np.atleast_1d(np.asarray(value)), 2**31, name)


def _any_number(name: str, value: Any) -> float:
    """A number, not finite ones included: that they are sent is the point."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
