"""The order in which an epoch visits a client's rows: a keyed bijection of [0, size).

`jax.random.permutation` needs a static size and does the work of the whole client at once. A Feistel network
over the residues (left mod a, right mod b) with a * b just above the size is a bijection too, costs only the
positions that are asked for, and takes a traced size. Positions that it sends beyond the size are sent on
until they are inside (cycle walking), which keeps it a bijection of [0, size).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

# Pinned: the default implementation may change, and others give other numbers when batched by vmap.
KEY_IMPLEMENTATION = "threefry2x32"
ROUNDS = 8


def root_key(seed: int) -> Array:
    """The key of a run, from which all its randomness on the device follows."""
    return jax.random.key(seed, impl=KEY_IMPLEMENTATION)


def epoch_key(client_key: Array, epoch: Array) -> Array:
    """The words [2] that fix the order of one epoch; `client_key` [2] is a key's data."""
    key = jax.random.wrap_key_data(client_key, impl=KEY_IMPLEMENTATION)
    return jax.random.key_data(jax.random.fold_in(key, epoch))


def client_keys(key: Array, round: Array, clients: Array) -> Array:
    """Words [clients, 2] that depend on the seed, the round and each client's number alone."""
    round_key = jax.random.fold_in(key, round)
    return jax.vmap(lambda client: jax.random.key_data(jax.random.fold_in(round_key, client)))(clients)


def permute(words: Array, positions: Array, size: Array) -> Array:
    """Where the order fixed by `words` [2] puts `positions` (any shape, int32, below `size`).

    >>> import numpy as np
    >>> order = permute(jnp.array([1, 2], jnp.uint32), jnp.arange(5), jnp.int32(5))
    >>> sorted(np.asarray(order).tolist())
    [0, 1, 2, 3, 4]
    """
    size = jnp.asarray(size).astype(jnp.uint32)
    a = jnp.ceil(jnp.sqrt(size.astype(jnp.float32))).astype(jnp.uint32)
    b = (size + a - 1) // a  # a * b >= size, and exceeds it by less than a

    def network(x: Array) -> Array:
        left, right = x % a, x // a
        for i in range(0, ROUNDS, 2):
            left = (left + _mix(words, right, i) % a) % a
            right = (right + _mix(words, left, i + 1) % b) % b
        return left + a * right

    walked = lax.while_loop(
        lambda x: jnp.any(x >= size),
        lambda x: jnp.where(x >= size, network(x), x),
        network(positions.astype(jnp.uint32)),
    )
    return walked.astype(jnp.int32)


def _mix(words: Array, value: Array, round: int) -> Array:
    """A hash of 32 bits: multiply-xorshift rounds with the key's two words mixed in."""
    h = value * jnp.uint32(0x9E3779B1) + jnp.uint32(0x7FEB352D * (round + 1) & 0xFFFFFFFF) + words[0]
    h = (h ^ (h >> 16)) * jnp.uint32(0x21F0AAAD)
    h = (h ^ (h >> 15) ^ words[1]) * jnp.uint32(0x735A2D97)
    h = (h ^ (h >> 15)) * jnp.uint32(0x9E3779B1)
    return h ^ (h >> 16)
