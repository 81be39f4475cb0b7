"""In which precision a model computes, and keeps its parameters."""

from typing import Any

import jax
import jax.numpy as jnp

DTYPES = ("bfloat16", "float16", "float32", "float64")


def checked(dtype: Any, param_dtype: Any) -> dict[str, Any]:
    """The two dtypes of a model, as a module's fields.

    Args:
        dtype: Of the products' factors; None is that of the parameters.
        param_dtype: Of the parameters, and of all sums and of what is between the products.

    >>> checked("bfloat16", jnp.float32)
    {'dtype': dtype(bfloat16), 'param_dtype': dtype('float32')}
    """
    return {
        "dtype": None if dtype is None else floating("dtype", dtype),
        "param_dtype": floating("param_dtype", param_dtype),
    }


def cast_floats(tree: Any, dtype: Any) -> Any:
    """A tree whose real numbers have a dtype; whole numbers stay."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def floating(name: str, value: Any) -> Any:
    """A dtype of real numbers, checked."""
    try:
        dtype = None if value is None else jnp.dtype(value)  # NumPy takes None for float64
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in DTYPES:
        raise ValueError(f"{name} must be one of {', '.join(DTYPES)}, got {value!r}")
    if dtype == jnp.float64 and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f'{name} is float64, which JAX makes float32 of: call jax.config.update("jax_enable_x64", True) first'
        )
    return dtype
