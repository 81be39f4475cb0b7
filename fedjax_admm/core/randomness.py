"""Keys: all randomness of a run on the device follows from its seed, the round and the client."""

from __future__ import annotations

import jax
from jax import Array

# Pinned: the default implementation may change, and others give other numbers when batched by vmap.
KEY_IMPLEMENTATION = "threefry2x32"


def root_key(seed: int) -> Array:
    """The key of a run, from which all its randomness on the device follows."""
    return jax.random.key(seed, impl=KEY_IMPLEMENTATION)


def client_keys(key: Array, round: Array, clients: Array) -> Array:
    """Words [clients, 2] that depend on the seed, the round and each client's number alone."""
    round_key = jax.random.fold_in(key, round)
    return jax.vmap(lambda client: jax.random.key_data(jax.random.fold_in(round_key, client)))(clients)
