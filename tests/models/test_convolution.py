"""`conv2d` and the pooling against XLA's own convolution and `reduce_window`, values and gradients, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

from fedjax_admm.models.convolution import conv2d
from fedjax_admm.models.group_norm import group_norm, group_norm_relu
from fedjax_admm.models.pooling import conv2d_max_pool2, max_pool2
from fedjax_admm.models.products import matmul

OPTIMIZED = True  # networks compute longer than they compile

TOLERANCE = {"float64": 1e-12, "float32": 2e-5}  # relative to the largest entry
DIMENSIONS = ("NHWC", "HWIO", "NHWC")


def reference_conv(x, kernel, strides=(1, 1), padding="VALID"):
    return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=DIMENSIONS)


def reference_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def reference_norm(x, scale, bias, groups=1):
    norm = linen.GroupNorm(groups, epsilon=1e-5, use_fast_variance=False)
    return norm.apply({"params": {"scale": scale, "bias": bias}}, x)


def reference_norm_relu(x, scale, bias, shortcut=0, groups=1):
    return jax.nn.relu(reference_norm(x, scale, bias, groups) + shortcut)


def normal(seed, shape, dtype="float64"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def value_and_gradients(function, *arguments):
    """The value and its products with one fixed cotangent."""
    value = jax.eval_shape(function, *arguments)
    cotangent = normal(99, value.shape, value.dtype)

    @jax.jit
    def compute(cotangent, *arguments):
        value, pull_back = jax.vjp(function, *arguments)
        return value, *pull_back(cotangent)

    return compute(cotangent, *arguments)


def assert_same(actual, expected, dtype="float64"):
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype and a.shape == e.shape
        np.testing.assert_allclose(a, e, rtol=0, atol=TOLERANCE[dtype] * max(1e-300, float(jnp.abs(e).max())))


CASES = [  # kernel size, strides, padding, channels in, channels out
    ((5, 5), (1, 1), "VALID", 1, 3),
    ((5, 5), (1, 1), "SAME", 3, 4),
    ((3, 3), (1, 1), "SAME", 4, 4),
    ((3, 3), (2, 2), ((1, 1), (1, 1)), 3, 5),
    ((3, 3), (2, 2), "SAME", 2, 3),
    ((1, 1), (1, 1), "VALID", 3, 2),
    ((1, 1), (2, 2), "SAME", 3, 2),
    ((2, 3), (2, 1), ((0, 1), (2, 0)), 2, 1),
    ((4, 2), (1, 3), "SAME", 1, 1),
    ((3, 1), (3, 2), "VALID", 5, 2),
    ((7, 9), (1, 1), "VALID", 2, 2),  # the kernel covers the image
    ((3, 3), (1, 1), ((2, 0), (0, 2)), 2, 3),
    ((5, 2), (1, 1), ((4, 4), (1, 0)), 3, 2),  # larger than the image
    ((2, 3), (1, 1), ((3, 3), (4, 0)), 1, 2),  # padded by more than the kernel
    ((4, 1), (1, 1), "SAME", 2, 2),
]


@pytest.mark.parametrize(("size", "strides", "padding", "inputs", "outputs"), CASES)
def test_values_and_gradients_equal_xlas(size, strides, padding, inputs, outputs):
    x, kernel = normal(0, (2, 7, 9, inputs)), normal(1, (*size, inputs, outputs))
    expected = value_and_gradients(lambda x, k: reference_conv(x, k, strides, padding), x, kernel)
    assert_same(value_and_gradients(lambda x, k: conv2d(x, k, strides, padding), x, kernel), expected)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("size", "strides", "padding", "inputs", "outputs"), [CASES[i] for i in (0, 2, 3, 5)])
def test_per_client_kernels_equal_a_loop_over_clients(size, strides, padding, inputs, outputs, dtype):
    x, kernel = normal(0, (3, 2, 8, 8, inputs), dtype), normal(1, (3, *size, inputs, outputs), dtype)
    actual = value_and_gradients(jax.vmap(lambda x, k: conv2d(x, k, strides, padding)), x, kernel)

    def loop(x, kernel):
        return jnp.stack([reference_conv(x[i], kernel[i], strides, padding) for i in range(3)])

    assert_same(actual, value_and_gradients(loop, x, kernel), dtype)


# Channels in and out: few, whose pixels are taken in twos where the width is even, and many.
@pytest.mark.parametrize(("inputs", "outputs"), [(3, 16), (16, 17)])
@pytest.mark.parametrize("padding", ["SAME", ((2, 1), (0, 1)), ((1, 1), (2, 2))])
@pytest.mark.parametrize("width", [5, 6, 7])
def test_images_of_even_and_odd_width(inputs, outputs, padding, width):
    x, kernel = normal(0, (2, 4, width, inputs)), normal(1, (3, 3, inputs, outputs))
    expected = value_and_gradients(lambda x, k: reference_conv(x, k, padding=padding), x, kernel)
    assert_same(value_and_gradients(lambda x, k: conv2d(x, k, padding=padding), x, kernel), expected)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (1, 0)])
def test_lanes_may_share_images_or_kernels(axes):
    shapes = [[2, 4, 6, 3], [3, 3, 3, 4]]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 3)
    factors = [normal(seed, tuple(shape)) for seed, shape in enumerate(shapes)]

    def lanes(conv):
        return jax.vmap(lambda x, k: conv(x, k, padding="SAME"), axes)

    assert_same(value_and_gradients(lanes(conv2d), *factors), value_and_gradients(lanes(reference_conv), *factors))


def test_hessian_vector_products():
    """By `grad` of `grad`: gradients written out are differentiated once more."""
    x, scale, bias = normal(0, (2, 4, 6, 3)), normal(1, (3,)), normal(2, (3,))
    kernel, direction = normal(3, (3, 3, 3, 3)), normal(4, (3, 3, 3, 3))

    def product(conv, norm):
        def loss(k):
            return jnp.square(norm(conv(jnp.tanh(conv(x, k, padding="SAME")), k, padding="SAME"), scale, bias, x)).sum()

        return jax.jit(lambda k: jax.grad(lambda k: jnp.vdot(jax.grad(loss)(k), direction))(k))(kernel)

    expected = product(reference_conv, reference_norm_relu)
    np.testing.assert_allclose(
        product(conv2d, group_norm_relu), expected, rtol=1e-9, atol=1e-9 * jnp.abs(expected).max()
    )


def test_inside_a_loop():
    x, kernel = normal(0, (2, 6, 6, 2)), normal(1, (3, 3, 2, 2)) / 5

    def repeat(conv):
        return lambda x, k: lax.scan(lambda x, _: (conv(x, k, padding="SAME"), None), x, length=3)[0]

    assert_same(value_and_gradients(repeat(conv2d), x, kernel), value_and_gradients(repeat(reference_conv), x, kernel))


@pytest.mark.parametrize("padding", ["valid", "CAUSAL"])
def test_unknown_padding(padding):
    with pytest.raises(ValueError, match="padding="):
        conv2d(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), padding=padding)


@pytest.mark.parametrize("shape", [(2, 6, 8, 3), (2, 7, 5, 1)])
@pytest.mark.parametrize("levels", [2, 3, 1000])  # few levels: many ties
def test_pooling_equals_reduce_window_also_in_ties(shape, levels):
    x = jnp.asarray(np.random.default_rng(0).integers(levels, size=shape), "float64")
    assert_same(value_and_gradients(max_pool2, x), value_and_gradients(reference_pool, x))


def test_pooling_gradient_sums_to_one_per_window_in_ties():
    gradient = jax.grad(lambda x: max_pool2(x).sum())(jnp.zeros((1, 4, 4, 1), "float64"))
    np.testing.assert_array_equal(gradient[0, ::2, ::2, 0], 1.0)
    assert gradient.sum() == 4


@pytest.mark.parametrize(
    ("size", "padding", "inputs", "outputs"),
    [
        ((5, 5), "VALID", 1, 3),
        ((5, 5), "SAME", 3, 4),
        ((3, 2), "VALID", 2, 3),
        ((2, 2), "SAME", 2, 1),
        ((1, 1), "VALID", 3, 2),
    ],
)
@pytest.mark.parametrize("image", [(8, 8), (9, 7)])
def test_convolution_with_pooling_equals_one_after_the_other(size, padding, inputs, outputs, image):
    x, kernel = normal(0, (2, *image, inputs)), normal(1, (*size, inputs, outputs))
    expected = value_and_gradients(lambda x, k: reference_pool(reference_conv(x, k, padding=padding)), x, kernel)
    assert_same(value_and_gradients(lambda x, k: conv2d_max_pool2(x, k, padding), x, kernel), expected)


def test_convolution_with_pooling_on_a_black_image():
    """Where an image is constant all of a window ties: the kernel's gradient must count the window once."""
    x, kernel = jnp.full((2, 8, 8, 1), -0.4, "float64"), normal(1, (5, 5, 1, 3))
    _, _, expected = value_and_gradients(lambda x, k: reference_pool(reference_conv(x, k)), x, kernel)
    _, _, actual = value_and_gradients(conv2d_max_pool2, x, kernel)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_bias_and_relu_commute_with_the_maximum_exactly():
    y, bias = normal(0, (4, 8, 8, 3), "float32"), normal(1, (3,), "float32")
    np.testing.assert_array_equal(jax.nn.relu(max_pool2(y) + bias), max_pool2(jax.nn.relu(y + bias)))


def rounded_vjp(function, *factors):
    """Of a product of two factors: all factors rounded to bfloat16, the cotangent too, and summed in float64."""

    def rounded(x):
        return x.astype(jnp.bfloat16).astype(jnp.float64)

    value = jax.eval_shape(function, *factors)
    value, pull_back = jax.vjp(function, *map(rounded, factors))
    return value, *pull_back(rounded(normal(99, value.shape)))


PRODUCTS = {
    "dense": (matmul, jnp.matmul, (6, 20), (20, 24)),
    "narrow dense": (matmul, jnp.matmul, (6, 20), (20, 10)),
    "by rows": (
        lambda x, k, dtype: conv2d(x, k, padding="SAME", dtype=dtype),
        lambda x, k: reference_conv(x, k, padding="SAME"),
        (2, 7, 6, 4),
        (3, 3, 4, 5),
    ),
    "patches": (
        lambda x, k, dtype: conv2d(x, k, (2, 2), dtype=dtype),
        lambda x, k: reference_conv(x, k, (2, 2)),
        (2, 9, 9, 3),
        (3, 3, 3, 20),
    ),
    "with pooling": (
        lambda x, k, dtype: conv2d_max_pool2(x, k, dtype=dtype),
        lambda x, k: reference_pool(reference_conv(x, k)),
        (2, 8, 8, 2),
        (3, 3, 2, 4),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_are_rounded_and_sums_are_not(name):
    product, reference, *shapes = PRODUCTS[name]
    factors = [normal(seed, shape) for seed, shape in enumerate(shapes)]
    expected = rounded_vjp(reference, *factors)
    actual = value_and_gradients(lambda x, k: product(x, k, dtype=jnp.bfloat16), *factors)
    assert_same(actual, expected)
    plain = value_and_gradients(lambda x, k: product(x, k, dtype=None), *factors)
    assert all(float(jnp.abs(a - b).max()) > 1e-4 for a, b in zip(actual, plain, strict=True))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm_equals_flax(groups):
    x, scale, bias = 3 + 2 * normal(0, (3, 5, 4, 6)), normal(1, (6,)), normal(2, (6,))
    expected = value_and_gradients(lambda *a: reference_norm(*a, groups), x, scale, bias)
    assert_same(value_and_gradients(lambda *a: group_norm(*a, groups), x, scale, bias), expected)
    each = jax.vmap(lambda *a: group_norm(*a, groups))(*(jnp.stack([a, 2 * a]) for a in (x, scale, bias)))
    np.testing.assert_allclose(each[0], expected[0], atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 8, 8, 2), (2, 1, 3, 2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_group_norm_with_shortcut_and_relu_equals_one_after_the_other(shape, dtype):
    x, shortcut = 3 + 2 * normal(0, shape, dtype), normal(3, shape, dtype)
    scale, bias = normal(1, shape[-1:], dtype), normal(2, shape[-1:], dtype)
    for arguments in ((x, scale, bias), (x, scale, bias, shortcut)):
        expected = value_and_gradients(lambda *a: reference_norm_relu(*a, groups=2), *arguments)
        assert_same(value_and_gradients(lambda *a: group_norm_relu(*a, groups=2), *arguments), expected, dtype)


def test_results_of_a_norm_are_written_once():
    """Not computed again where they are read, which for a residual network is in all blocks after."""
    x, scale = normal(0, (2, 4, 6, 3), "float32"), jnp.ones(3, "float32")

    def blocks(x, norm):
        for _ in range(3):
            x = norm(x, scale, scale, x)
        return x

    def subtractions(norm):
        text = jax.jit(lambda x: lax.fori_loop(0, 9, lambda _, x: blocks(x, norm), x)).lower(x).compile().as_text()
        return text.count(" subtract(")

    # Of the mean, in the variance and in the result.
    assert subtractions(group_norm_relu) <= 6 < subtractions(reference_norm_relu)
