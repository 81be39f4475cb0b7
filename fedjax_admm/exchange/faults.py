"""Faults that any algorithm can be run with: clients that drop out or send rubbish, and a server that defends itself.

A round asks twice: before a client's solve, whether it is there (`absent`), and after it, what the server takes of it
(`receive`). All draws depend on the seed, the round and the client alone, so neither lanes nor devices nor where the
rows live change who fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.types import Key, Params
from ..core.vocabulary import OFFENCES, Client, Round, StopReason
from .stage import PRESENT, Memory, Outcome, Stage

GROSS = 10.0  # times clip_norm: a longer update is an offence where there is quarantine


@record
class Faults(Stage):
    """Which clients fail and how, and what the server does about it. An argument that is None is off.

    A client that drops out or is in quarantine computes, receives and sends nothing. It keeps its previous state, as
    does a client whose update is rejected. The server continues with the other clients; if there are none, its model
    stays as it is. A corrupted client solves its subproblem correctly but sends something else. Server and client both
    continue from what was received and clipped, so duals and control variates follow from that. The penalty of a
    client whose update was clipped does not change, since its rule would compare the clipping length with itself.

    With both defences on, whatever a client sends is either an offence or moves the client by at most `clip_norm`. So
    the distance by which corrupted clients can move the server in k rounds is limited, whatever they send: to k
    clip_norm for methods that average models, and to k (k + 3) / 2 clip_norm for methods whose duals, at a constant
    penalty, add up the updates. A limit on updates cannot do better, since it cannot distinguish a client that always
    pulls a little in one direction from a client whose optimum is far away.

    `Solves.stop_reason` records what happened to each client: "dropped", "quarantined", "failed", "corrupted" (its
    update was used) or "rejected" (its update was not used). The history has a column with the number of each.

    Attributes:
        dropout: The probability that a selected client drops out of a round before it does anything: a number, one per
            client [clients], or a table [rounds, clients], which with zeros and ones is a fixed schedule.
        corruption: What corrupted clients send in place of their parameters u: "scale", z + strength (u - z);
            "sign_flip", z - strength (u - z); "noise", u + strength * standard normal; "constant", strength in every
            place.
        corrupted: The numbers of the clients that are corrupted whenever they take part.
        strength: The strength of the corruption; by default 10 for "scale", NaN for "constant", and otherwise 1.
        clip_norm: The server shortens updates u - z to at most this norm; choose it larger than the updates of correct
            clients.
        quarantine_after: After this many offences a client is excluded for the rest of the run. Offences are solves or
            updates that are not finite, and updates more than ten times as long as clip_norm; such updates are not
            used.

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
            checks.client_numbers("corrupted", self.corrupted, num_clients)

    def check_rounds(self, rounds: int) -> None:
        """A schedule must reach to the last round."""
        if np.ndim(self.dropout) == 2 and rounds > len(self.dropout):
            raise ValueError(f"dropout is a schedule of {len(self.dropout)} rounds, but rounds is {rounds}")

    @property
    def stream(self) -> int:
        return 2**31

    def of_client(self, id: Array) -> Faults:
        mine = jax.tree.map(lambda leaf: leaf, self)  # a copy, unchecked
        if self.dropout is not None and jnp.ndim(self.dropout) == 1:
            object.__setattr__(mine, "dropout", self.dropout[id])
        return mine

    def start(self, params: Params, client: Client) -> Memory:
        return {} if self.quarantine_after is None else {"offences": jnp.int32(0)}

    def absent(self, memory: Memory, client: Client, round: Round) -> Array:
        code = jnp.int32(PRESENT)
        if self.dropout is not None:
            table = jnp.asarray(self.dropout)
            probability = table[round.number, client.id] if table.ndim == 2 else table
            drops = jax.random.uniform(round.key, dtype=jnp.float32) < probability.astype(jnp.float32)
            code = jnp.where(drops, StopReason.DROPPED.code, code)
        if self.quarantine_after is not None:
            code = jnp.where(memory["offences"] >= self.quarantine_after, StopReason.QUARANTINED.code, code)
        return code

    def receive(self, outcome: Outcome, memory: Memory, client: Client, round: Round) -> Outcome:
        z, u, ok, code = outcome.center, outcome.params, outcome.ok, outcome.stop_code
        if self.corruption is not None:
            corrupted = jnp.any(client.id == self.corrupted)
            sent = CORRUPTIONS[self.corruption].sent(round.key, z, u, jnp.asarray(self.strength))
            u = trees.where(corrupted, sent, u)
            code = jnp.where(ok & corrupted, StopReason.CORRUPTED.code, code)
        update = optax.tree.sub(u, z)
        accepted = trees.all_finite((u, update))
        clipped = jnp.bool_(False)
        if self.clip_norm is not None:
            shorter, clipped, gross = clip(update, self.clip_norm)
            u = trees.where(clipped, optax.tree.add(z, shorter), u)
            accepted &= ~gross if self.quarantine_after is not None else True
        code = jnp.where(ok & ~accepted, StopReason.REJECTED.code, code)
        ok &= accepted
        return outcome._replace(
            params=trees.where(ok, u, outcome.params),
            ok=ok,
            stop_code=code,
            clipped=outcome.clipped | clipped,
        )

    def remember(self, memory: Memory, stop_code: Array) -> Memory:
        offence = jnp.isin(stop_code, jnp.asarray([reason.code for reason in OFFENCES], stop_code.dtype))
        return {name: count + offence.astype(count.dtype) for name, count in memory.items()}


class Corruption(NamedTuple):
    """A way to corrupt one client's parameters, and its usual strength."""

    sent: Callable[[Key, Params, Params, Array], Params]  # key, z, u, strength -> what is sent
    strength: float


def _scale(key: Key, z: Params, u: Params, strength: Array) -> Params:
    return jax.tree.map(lambda z, u: z + strength.astype(u.dtype) * (u - z), z, u)


def _sign_flip(key: Key, z: Params, u: Params, strength: Array) -> Params:
    return _scale(key, z, u, -strength)


def _noise(key: Key, z: Params, u: Params, strength: Array) -> Params:
    noise = optax.tree.random_like(key, u, sampler=jax.random.normal)
    return jax.tree.map(lambda u, n: u + strength.astype(u.dtype) * n, u, noise)


def _constant(key: Key, z: Params, u: Params, strength: Array) -> Params:
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


def _client_numbers(name: str, value: Any) -> np.ndarray:
    return checks.client_numbers(name, np.atleast_1d(np.asarray(value)), 2**31)


def _any_number(name: str, value: Any) -> float:
    """A number, not finite ones included: that they are sent is the point."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
