"""Keys: all randomness of a run on the device follows from its seed, the round and the client."""

from __future__ import annotations

import jax
from jax import Array

from .types import Key

# Pinned: the default implementation may change, and others give other numbers when batched by vmap.
KEY_IMPLEMENTATION = "threefry2x32"


def root_key(seed: int) -> Key:
    """The key of a run, from which all its randomness on the device follows."""
    return jax.random.key(seed, impl=KEY_IMPLEMENTATION)


def client_key(key: Key, round: Array, client: Array) -> Key:
    """A key that depends on the seed, the round and the client's number alone."""
    return jax.random.fold_in(jax.random.fold_in(key, round), client)
