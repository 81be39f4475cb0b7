"""The order in which an epoch visits a client's rows: a keyed bijection of [0, size).

`jax.random.permutation` needs a static size and does the work of the whole client at once. The swap-or-not
shuffle takes a traced size and costs only the positions that are asked for: in each of its rounds
a position x has the partner k - x mod size, with a k from the key, and a bit of a hash of (key, the larger of the two)
says whether they change places. (A Feistel network with cycle walking, tried first, puts pairs of neighbours
unevenly for clients of a few rows; the tests count them.)

Hoang, Morris and Rogaway, "An Enciphering Scheme Based on a Card Shuffle", CRYPTO 2012.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

# Pinned: the default implementation may change, and others give other numbers when batched by vmap.
KEY_IMPLEMENTATION = "threefry2x32"
UNROLL = 4
ROUNDS = 16  # from 12 on, positions and pairs passed chi-square tests of a million draws for sizes of 2 to 50


def root_key(seed: int) -> Array:
    """The key of a run, from which all its randomness on the device follows."""
    return jax.random.key(seed, impl=KEY_IMPLEMENTATION)


def epoch_order(client_key: Array, epoch: Array) -> Array:
    """The words [2, ROUNDS] that fix the order of one epoch; `client_key` [2] is a key's data.

    The key's own words are as good as random; hashing the epoch into them is enough, and a hundredth of the
    instructions of another threefry.
    """
    words = _mix(client_key ^ _mix(epoch.astype(jnp.uint32) * jnp.uint32(0x85EBCA6B) + jnp.uint32(1)))
    odd = jnp.arange(1, 2 * ROUNDS, 2, dtype=jnp.uint32)
    return _mix(words[:, None] + odd[None, :] * jnp.uint32(0x9E3779B1))


def client_keys(key: Array, round: Array, clients: Array) -> Array:
    """Words [clients, 2] that depend on the seed, the round and each client's number alone."""
    round_key = jax.random.fold_in(key, round)
    return jax.vmap(lambda client: jax.random.key_data(jax.random.fold_in(round_key, client)))(clients)


def permute(order: Array, positions: Array, size: Array) -> Array:
    """Where the order fixed by `order` [2, ROUNDS] puts `positions` (any shape, int32, below `size`).

    >>> order = epoch_order(jnp.array([1, 2], jnp.uint32), jnp.int32(0))
    >>> sorted(permute(order, jnp.arange(5), jnp.int32(5)).tolist())
    [0, 1, 2, 3, 4]
    """
    size = jnp.asarray(size).astype(jnp.uint32)
    x = positions.astype(jnp.uint32)
    sums = order[0] % size

    def swap_or_not(i: Array, x: Array) -> Array:
        k, salt = sums[i], order[1, i]
        partner = jnp.where(x <= k, k - x, k + size - x)
        hashed = jnp.maximum(x, partner) * jnp.uint32(0x9E3779B1) + salt
        hashed = (hashed ^ (hashed >> 15)) * jnp.uint32(0x21F0AAAD)
        return jnp.where(hashed >> 31 == 1, partner, x)

    # A loop, though short: unrolled entirely, XLA fuses the rounds into every field's gather, each its own copy.
    return lax.fori_loop(0, ROUNDS, swap_or_not, x, unroll=UNROLL).astype(jnp.int32)


def _mix(h: Array) -> Array:
    """A hash of 32 bits by multiplications and shifts."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x21F0AAAD)
    h = (h ^ (h >> 15)) * jnp.uint32(0x735A2D97)
    return h ^ (h >> 15)
