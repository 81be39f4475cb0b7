"""Names for what many signatures hand on: they say what a value is where no type can."""

from __future__ import annotations

from typing import Any

from jax import Array

Params = Any  # a pytree of floating-point arrays: a model's parameters, or what has their structure
Rows = dict[str, Any]  # name -> pytree: what an algorithm keeps of one client [...], or of all [clients, ...]
Key = Array  # a key of `jax.random`
