"""Maximum over 2 x 2 windows, alone and together with the convolution before it.

Of several equal maxima the first one in row-major order takes the whole gradient, as with `reduce_window` and in
PyTorch; `jnp.max` divides it among them, which costs a count. Images are [batch, height, width, channels].
"""

from typing import Any

import jax
import jax.numpy as jnp

from .convolution import Padding, pairs
from .products import join, patch_product

__all__ = ["max_pool2"]


def max_pool2(x: jax.Array) -> jax.Array:
    """Maximum over 2 x 2 windows: [N, H, W, C] -> [N, H // 2, W // 2, C]; an odd last row or column is left out.

    Args:
        x: Images [N, H, W, C].

    >>> max_pool2(jnp.ones((2, 24, 24, 32))).shape
    (2, 12, 12, 32)
    """
    return max_of_four(_blocks(x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]))


def conv2d_max_pool2(x: jax.Array, kernel: jax.Array, padding: Padding = "VALID", dtype: Any = None) -> jax.Array:
    """`max_pool2(conv2d(x, kernel))` at stride one, with each pooling window as one row of the product.

    A 2 x 2 block of outputs sees (kh + 1) x (kw + 1) inputs, so the block is one row of patches times the kernel
    in its four positions, side by side and filled up with zeros. For a 5 x 5 kernel that is 1.44 times the
    multiplications, but the patches are a third as large, and the maximum is over contiguous slices; for one
    input channel the product is faster too, by its shape. Pixels are taken in blocks of 2 x 2, which makes the
    patches' runs of contiguous numbers four times as long.

    Args:
        x: Images [N, H, W, Cin].
        kernel: [kh, kw, Cin, Cout].
        padding: As in `conv2d`.
        dtype: As in `conv2d`.

    Returns:
        [N, H' // 2, W' // 2, Cout].
    """
    kernel_size = kernel.shape[:2]
    pads = pairs(x.shape[1:3], kernel_size, (1, 1), padding)
    window = tuple(size // 2 + 1 for size in kernel_size)  # in blocks
    fitted = []
    for size, pad, k, blocks in zip(x.shape[1:3], pads, kernel_size, window, strict=True):
        outputs = (size + sum(pad) - k + 1) // 2
        # Exactly the blocks that are needed: a negative number cuts off what no output sees.
        fitted.append((pad[0], 2 * (outputs + blocks - 1) - size - pad[0], 0))
    x = jax.lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), *fitted, (0, 0, 0)))
    return max_of_four(patch_product(_blocks(x), _four_positions(kernel, window), window, dtype=dtype))


def _blocks(x: jax.Array) -> jax.Array:
    """[N, H, W, C] -> [N, H / 2, W / 2, 4 * C], the four pixels of a block in row-major order."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4 * c)


def _four_positions(kernel: jax.Array, window: tuple[int, ...]) -> jax.Array:
    """The kernel as it acts on a window of blocks, for each output of a block: [window * 4 * Cin, 4 * Cout]."""
    kh, kw, in_channels, out_channels = kernel.shape
    bh, bw = window

    def position(i, j):
        padded = jnp.pad(kernel, ((i, 2 * bh - kh - i), (j, 2 * bw - kw - j), (0, 0), (0, 0)))
        blocks = padded.reshape(bh, 2, bw, 2, in_channels, out_channels).transpose(0, 2, 1, 3, 4, 5)
        return blocks.reshape(-1, out_channels)

    return join([position(i, j) for i in (0, 1) for j in (0, 1)])


@jax.custom_vjp
def max_of_four(x: jax.Array) -> jax.Array:
    """Maximum over four blocks of channels: [..., 4 * C] -> [..., C]; the first of equals takes the gradient."""
    a, b, c, d = jnp.split(x, 4, axis=-1)
    return jnp.maximum(jnp.maximum(a, b), jnp.maximum(c, d))


def _max_of_four_forward(x):
    top = max_of_four(x)
    return top, (x, top)


def _max_of_four_backward(residuals, g):
    x, top = residuals
    is_a, is_b, is_c = (block == top for block in jnp.split(x, 4, axis=-1)[:3])
    zero = jnp.zeros_like(g)
    # The last one is what is left, without a comparison: exactly one of the four gets the gradient.
    takes_b, takes_c, takes_d = ~is_a & is_b, ~(is_a | is_b) & is_c, ~(is_a | is_b | is_c)
    return (join([jnp.where(takes, g, zero) for takes in (is_a, takes_b, takes_c, takes_d)]),)


max_of_four.defvjp(_max_of_four_forward, _max_of_four_backward)
