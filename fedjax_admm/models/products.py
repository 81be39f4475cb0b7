"""Matrix product and patches with gradients written out, for what XLA's CPU backend makes of them in a loop.

Both are linear (bilinear) and their gradients are the ones that JAX would derive. Written out they avoid two
things that cost a fifth of a training step: a weight gradient that is computed transposed and then read across
its rows by the update, and element-wise work that XLA repeats in every operation that reads its result.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# Up to so many columns a weight gradient is computed across: with 50 rows and 784 inputs, in a loop on a CPU, 10
# columns took 19 us so and 43 us the other way, 64 columns 154 and 56. The product itself is computed with columns of
# zeros up to a whole vector: 5 columns took 30 us, filled up to 8 13 us; 10 took 26 us, filled up to 16 22 us.
NARROW = 16
VECTOR = 8


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x: jax.Array, w: jax.Array, dtype: Any = None) -> jax.Array:
    """[..., K] times [K, n] -> [..., n]

    Args:
        x: [..., K].
        w: [K, n], of the same dtype.
        dtype: Of the products' factors, here and in the gradients; their sums have the dtype of x. None is that too.
    """
    return _product(rounded(x, dtype), rounded(w, dtype), x.dtype)


def _matmul_forward(x, w, dtype):
    residuals = rounded(x, dtype), rounded(w, dtype)
    return _product(*residuals, x.dtype), residuals


def _matmul_backward(dtype, residuals, g):
    x, w = residuals
    return _input_gradient(rounded(g, dtype), w, g.dtype), _weight_gradient(x, rounded(g, dtype), g.dtype)


matmul.defvjp(_matmul_forward, _matmul_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def patch_product(
    x: jax.Array, w: jax.Array, window: tuple[int, int], strides: tuple[int, int] = (1, 1), dtype: Any = None
) -> jax.Array:
    """`matmul(patches(x, window, strides), w, dtype)`, of which the patches are as narrow as `dtype`.

    Args:
        x: Images [N, H, W, C].
        w: [kh * kw * C, n], of the same dtype.
        window: (kh, kw).
        strides: Steps along height and width.
        dtype: As in `matmul`; what goes back to the images is not rounded.
    """
    return _patch_product_forward(x, w, window, strides, dtype)[0]


def _patch_product_forward(x, w, window, strides, dtype):
    rows: Any = patches(rounded(x, dtype), window, strides)
    w = rounded(w, dtype)
    return _product(rows, w, x.dtype), (rows, w, _Shape(x.shape))


def _patch_product_backward(window, strides, dtype, residuals, g):
    rows, w, shape = residuals
    g_rounded = rounded(g, dtype)
    (gradient_x,) = _patches_backward(window, strides, shape.shape, _input_gradient(g_rounded, w, g.dtype))
    return gradient_x, _weight_gradient(rows, g_rounded, g.dtype)


patch_product.defvjp(_patch_product_forward, _patch_product_backward)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]


def rounded(x: jax.Array, dtype: Any) -> jax.Array:
    """x in another dtype; None leaves it."""
    return x if dtype is None else x.astype(dtype)


def _product(x: jax.Array, w: jax.Array, dtype: Any) -> jax.Array:
    columns = w.shape[-1]
    if 1 < columns < NARROW and columns % VECTOR:
        w = jnp.pad(w, ((0, 0), (0, -columns % VECTOR)))
    return _dot(x, w, (x.ndim - 1,), (0,), dtype)[..., :columns]


def _input_gradient(g: jax.Array, w: jax.Array, dtype: Any) -> jax.Array:
    return _dot(g, w, (g.ndim - 1,), (1,), dtype)


def _weight_gradient(x: jax.Array, g: jax.Array, dtype: Any) -> jax.Array:
    leading = tuple(range(x.ndim - 1))
    if g.shape[-1] > NARROW:
        return _dot(x, g, leading, leading, dtype)  # already [K, n]
    # Vectorized along K instead of n. The barriers keep XLA from turning it round again.
    across = lax.optimization_barrier(g.reshape(-1, g.shape[-1]).T)
    product = _dot(across, x.reshape(-1, x.shape[-1]), (1,), (0,), dtype)
    return lax.optimization_barrier(product).T  # from [n, K]


def _dot(x: jax.Array, y: jax.Array, axes_x: tuple[int, ...], axes_y: tuple[int, ...], dtype: Any) -> jax.Array:
    return lax.dot_general(x, y, ((axes_x, axes_y), ((), ())), preferred_element_type=dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def patches(x: jax.Array, window: tuple[int, int], strides: tuple[int, int] = (1, 1)) -> jax.Array:
    """Every window of the images as one row: [N, H, W, C] -> [N, H', W', kh * kw * C], channels fastest.

    Columns first, then rows of those: kh + kw slices instead of kh * kw, and runs of kw * C contiguous numbers in
    the second, larger step.
    """
    (kh, kw), (sh, sw) = window, strides
    h, w = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1
    x = join([x[:, :, j : j + (w - 1) * sw + 1 : sw] for j in range(kw)])
    return join([x[:, i : i + (h - 1) * sh + 1 : sh] for i in range(kh)])


def _patches_forward(x, window, strides):
    return patches(x, window, strides), x.shape


def _patches_backward(window, strides, shape, g):
    _, height, width, _ = shape
    g = _overlap_add(g, window[0], strides[0], height, axis=1)
    g = _overlap_add(g, window[1], strides[1], width, axis=2)
    return (lax.optimization_barrier(g),)  # else every reader of this gradient adds the windows up again


patches.defvjp(_patches_forward, _patches_backward)


def _overlap_add(g: jax.Array, window: int, stride: int, size: int, axis: int) -> jax.Array:
    """Add up, at each of `size` positions along `axis`, the blocks of channels of the windows that cover it.

    Position stride * i + p is covered by block p + stride * j of window i - j, so each p is a sum of shifted blocks.
    They are put side by side: zeros between the blocks' rows would cost several times as much.
    """
    positions = -(-size // stride)
    blocks, zero = jnp.split(g, window, axis=-1), jnp.zeros((), g.dtype)
    phases = []
    for phase in range(stride):
        total = None
        for shift, block in enumerate(blocks[phase::stride]):
            padding = [(0, 0, 0)] * g.ndim
            padding[axis] = (shift, positions - shift - g.shape[axis], 0)
            term = lax.pad(block, zero, padding)
            total = term if total is None else total + term
        phases.append(jnp.zeros_like(phases[0]) if total is None else total)
    if stride == 1:
        return phases[0]
    joined = jnp.stack(phases, axis + 1)
    joined = joined.reshape(*g.shape[:axis], -1, *joined.shape[axis + 2 :])
    return lax.slice_in_dim(joined, 0, size, axis=axis)


def join(arrays: list[jax.Array]) -> jax.Array:
    """Concatenate along the channels."""
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=-1)
