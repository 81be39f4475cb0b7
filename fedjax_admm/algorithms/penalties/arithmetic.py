"""Arithmetic that several rules share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array


def balance(penalty: Array, gap: Array, force: Array, mu: Any, tau: Any) -> Array:
    """The penalty times or by tau where gap and force differ by more than mu."""
    grown = jnp.where(gap > mu * force, penalty * tau, penalty)
    return jnp.where(force > mu * gap, penalty / tau, grown)


def or_one(value: Any) -> Array:
    """A denominator."""
    return jnp.where(value == 0, 1, value)
