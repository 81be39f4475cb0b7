"""Convolution by matrix products.

Why not `lax.conv_general_dilated`: with per-client weights, `vmap` turns it into a grouped convolution, whose
gradient is slow on a CPU and on a GPU and slow to compile; and inside `while_loop` or `scan`, which is where
every local solve runs, XLA's CPU backend takes a slow path for it. A matrix product under `vmap` is a batched
matrix product, which is fast on every platform. For that reason there is no choice by platform here: the
grouped convolution is what a GPU or TPU would be given instead. (Not measured on an accelerator.)

Images are [batch, height, width, channels], kernels [kernel height, kernel width, in, out].
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .products import join, patch_product, patches, rounded

__all__ = ["conv2d"]

Padding = str | Sequence[tuple[int, int]]


def conv2d(
    x: jax.Array, kernel: jax.Array, strides: tuple[int, int] = (1, 1), padding: Padding = "VALID", dtype: Any = None
) -> jax.Array:
    """Cross-correlates images with a kernel; equal to `lax.conv_general_dilated` (NHWC, HWIO) up to rounding.

    Args:
        x: Images [N, H, W, Cin].
        kernel: [kh, kw, Cin, Cout], of the same dtype.
        strides: Steps along height and width.
        padding: "VALID", "SAME", or ((top, bottom), (left, right)), non-negative.
        dtype: The dtype to which the factors of all products are rounded, also in the gradients; sums have the dtype
            of x.

    Returns:
        [N, H', W', Cout].

    >>> conv2d(jnp.ones((2, 28, 28, 1)), jnp.ones((5, 5, 1, 32))).shape
    (2, 24, 24, 32)
    """
    kh, kw, _, out_channels = kernel.shape
    pads = pairs(x.shape[1:3], (kh, kw), strides, padding)
    (top, bottom), (left, right) = pads
    keeps_height = 0 < kh - 1 <= 1.25 * (top + bottom)
    if tuple(strides) == (1, 1) and keeps_height and max(top, bottom) < kh and max(left, right) < kw:
        return _by_rows(x, kernel, pads, dtype)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    return patch_product(x, kernel.reshape(-1, out_channels), (kh, kw), tuple(strides), dtype)


def pairs(
    image: Sequence[int], window: Sequence[int], strides: Sequence[int], padding: Padding
) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, bottom), (left, right)) of a padding that may be given by name."""
    if isinstance(padding, str):
        if padding not in ("VALID", "SAME"):
            raise ValueError(f'padding must be "VALID", "SAME" or two pairs of integers, got {padding=}')
        padding = lax.padtype_to_pads(image, window, strides, padding)
    rows, columns = ((int(low), int(high)) for low, high in padding)
    return rows, columns


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _by_rows(x: jax.Array, kernel: jax.Array, pads: tuple[tuple[int, int], tuple[int, int]], dtype: Any) -> jax.Array:
    """Convolution at stride one where the padding keeps the height.

    Only the columns are made into patches (kw times the image instead of kh * kw times); one product with the
    kernel's rows side by side then gives, at every height, what that row of the image adds to kh rows of the
    output. The gradient by the image is a convolution of the same kind.
    """
    return _by_rows_forward(x, kernel, pads, dtype)[0]


def _by_rows_forward(x, kernel, pads, dtype):
    height = x.shape[1] + sum(pads[0]) - kernel.shape[0] + 1
    residuals = rounded(x, dtype), rounded(kernel, dtype)
    columns = _column_patches(residuals[0], kernel.shape[1], pads[1])
    return _add_rows(columns, residuals[1], pads[0][0], height, x.dtype), residuals


def _by_rows_backward(pads, dtype, residuals, g):
    x, kernel = residuals
    kh, kw, in_channels, out_channels = kernel.shape
    (top, _), (left, right) = pads
    height, sums = x.shape[1], g.dtype
    g = rounded(g, dtype)
    flipped = jnp.flip(kernel, (0, 1)).transpose(0, 1, 3, 2)
    columns = _column_patches(g, kw, (kw - 1 - left, kw - 1 - right))
    gradient_x = _add_rows(columns, flipped, kh - 1 - top, height, sums)

    columns = _column_patches(x, kw, (left, right)).reshape(-1, kw * in_channels)
    # Behind the barrier the transposed matrix is written out: XLA has a fast product only for that.
    transposed = lax.optimization_barrier(columns.T)
    shifted = join([_move_rows(g, i - top, height) for i in range(kh)]).reshape(-1, kh * out_channels)
    product = jnp.matmul(transposed, shifted, preferred_element_type=sums)
    return gradient_x, product.reshape(kw, in_channels, kh, out_channels).transpose(2, 0, 1, 3)


_by_rows.defvjp(_by_rows_forward, _by_rows_backward)


def _column_patches(x: jax.Array, kw: int, pad: tuple[int, int]) -> jax.Array:
    """[N, H, W, C] -> [N, H, W', kw * C]"""
    return patches(jnp.pad(x, ((0, 0), (0, 0), pad, (0, 0))), (1, kw), (1, 1))


def _add_rows(columns: jax.Array, kernel: jax.Array, top: int, height: int, sums: Any) -> jax.Array:
    """Finish a convolution from its patches of columns: [N, H, W', kw * Cin] -> [N, height, W', Cout]."""
    kh, kw, in_channels, out_channels = kernel.shape
    side_by_side = kernel.transpose(1, 2, 0, 3).reshape(kw * in_channels, kh * out_channels)
    product = jnp.matmul(columns, side_by_side, preferred_element_type=sums)
    parts = jnp.split(product, kh, axis=-1)
    return functools.reduce(jnp.add, [_move_rows(part, top - i, height) for i, part in enumerate(parts)])


def _move_rows(x: jax.Array, distance: int, height: int) -> jax.Array:
    """Move an image's rows down by a distance, and cut it or fill it up with zeros to a height."""
    rows = (distance, height - x.shape[1] - distance, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), rows, (0, 0, 0), (0, 0, 0)))
