"""Convolution for loops and for per-client weights.

Two things make `lax.conv_general_dilated` slow where local solves run, and both are avoided here:

- With per-client weights `vmap` turns it into a grouped convolution, whose gradient is slow on a CPU and on a GPU and
  slow to compile. Here lanes take turns on a CPU; elsewhere the convolution is a matrix product, which under `vmap` is
  a batched one.
- Inside `while_loop` or `scan` XLA's CPU backend has a fast convolution only for images [N, H, W, C] and kernels
  [kh, kw, in, out], and the gradients that JAX derives have other orders (and took 50 times as long as the whole step
  should). Here they are written out in that order, or as a matrix product.

What is not such a convolution (strides, no padding, factors rounded to a smaller dtype) is a product of patches.
(Not measured on an accelerator.)

Images are [batch, height, width, channels], kernels [kernel height, kernel width, in, out].
"""

import functools
from collections.abc import Callable, Sequence
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
        if x.dtype in (jnp.float32, jnp.float64) and dtype in (None, x.dtype):
            return _direct(x, kernel, pads)
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


Pads = tuple[tuple[int, int], tuple[int, int]]

# XLA's CPU backend hands a convolution to its fast library only if one of the two numbers of channels is larger.
NARROW = 16


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _direct(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """Convolution at stride one where the padding keeps the height, by XLA's own on a CPU."""

    in_turns, rows = _versions(pads)
    return lax.platform_dependent(x, kernel, cpu=in_turns, default=rows)


@functools.cache
def _versions(pads: Pads) -> tuple[Callable[[jax.Array, jax.Array], jax.Array], ...]:
    """Of a convolution: the same objects in each layer, so that layers of the same shape are traced once."""

    def rows(x, kernel):
        columns = _column_patches(x, kernel.shape[1], pads[1])
        return _add_rows(columns, kernel, pads[0][0], x.shape[1] + sum(pads[0]) - kernel.shape[0] + 1, x.dtype)

    return _in_turns(functools.partial(_convolve, pads=pads)), rows


def _direct_backward(pads, residuals, g):
    x, kernel = residuals
    g = lax.optimization_barrier(g)  # else XLA computes it once more for every operation that reads it
    kh, kw, in_channels, out_channels = kernel.shape
    (top, bottom), (left, right) = pads
    flipped = jnp.flip(kernel, (0, 1)).transpose(0, 1, 3, 2)
    opposite = (kh - 1 - top, kh - 1 - bottom), (kw - 1 - left, kw - 1 - right)

    columns = _column_patches(x, kw, (left, right)).reshape(-1, kw * in_channels)
    shifted = join([_move_rows(g, i - top, x.shape[1]) for i in range(kh)]).reshape(-1, kh * out_channels)
    product = lax.dot_general(shifted, columns, (((0,), (0,)), ((), ())))
    gradient = product.reshape(kh, out_channels, kw, in_channels).transpose(0, 2, 3, 1)
    return _direct(g, flipped, opposite), gradient


def _direct_forward(x, kernel, pads):
    x = lax.optimization_barrier(x)
    return _direct(x, kernel, pads), (x, kernel)


_direct.defvjp(_direct_forward, _direct_backward)


def _in_turns(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A convolution (x, kernel) -> y whose `vmap` computes one lane after the other, if kernels differ."""
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def rule(lanes: int, batched: list[bool], x: jax.Array, kernel: jax.Array):  # pyright: ignore[reportUnusedFunction]
        if not batched[1]:
            y = mapped(x.reshape(-1, *x.shape[2:]), kernel)
            return y.reshape(lanes, -1, *y.shape[1:]), True
        xs = x if batched[0] else jnp.broadcast_to(x, (lanes, *x.shape))
        if lanes == 1:
            return mapped(xs[0], kernel[0])[None], True
        return lax.map(lambda pair: mapped(*pair), (xs, kernel)), True

    return mapped


def _convolve(x: jax.Array, kernel: jax.Array, pads: Pads) -> jax.Array:
    """XLA's convolution, in the one order of axes that is fast in a loop.

    Where there are few channels, two neighbouring pixels are taken as one with twice as many: the kernel then acts on
    (kw + 1) / 2 such pixels, in two positions side by side. With 16 channels that is 4/3 of the multiplications, in
    two thirds of the time.
    """
    kh, kw, in_channels, out_channels = kernel.shape
    n, _, width, _ = x.shape
    outputs = width + sum(pads[1]) - kw + 1
    if max(in_channels, out_channels) > NARROW or kw % 2 == 0 or outputs % 2 or not outputs:
        return lax.conv_general_dilated(x, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = lax.optimization_barrier(jnp.pad(x, ((0, 0), (0, 0), pads[1], (0, 0))))
    x = x.reshape(n, x.shape[1], -1, 2 * in_channels)
    positions = [jnp.pad(kernel, ((0, 0), (i, 1 - i), (0, 0), (0, 0))) for i in (0, 1)]
    kernel = join(positions).reshape(kh, (kw + 1) // 2, 2 * in_channels, 2 * out_channels)
    y = lax.conv_general_dilated(x, kernel, (1, 1), (pads[0], (0, 0)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y.reshape(n, -1, outputs, out_channels)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _by_rows(x: jax.Array, kernel: jax.Array, pads: Pads, dtype: Any) -> jax.Array:
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
