"""Parameter counts, starts, normalisation, gradients, and that models built twice are one to the compiler."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen

import fedjax_admm as fa
from fedjax_admm import models, problems
from fedjax_admm.models.normalization import to_float

OPTIMIZED = True  # networks compute longer than they compile

KEY = jax.random.key(0)

MODELS = {  # name: how to build it, shape of an image, number of parameters
    "logistic": (lambda: models.logistic((28, 28, 1), normalization=models.MNIST), (28, 28, 1), 7_850),
    "mlp": (lambda: models.mlp((28, 28, 1), (200, 200), normalization=models.MNIST), (28, 28, 1), 199_210),
    "cnn": (models.cnn, (28, 28, 1), 582_026),
    "cnn_padded": (lambda: models.cnn(padded=True), (28, 28, 1), 1_663_370),
    "resnet20": (models.resnet20, (32, 32, 3), 269_722),
}
LARGE = {
    "resnet18": (models.resnet18, (32, 32, 3), 11_173_962),  # with BatchNorm's scales and biases it has as many
    "vit": (
        models.vit,
        (32, 32, 3),
        # first layer, positions, blocks (two norms, four maps of attention, two dense layers), norm, last layer
        49 * 128 + 64 * 128 + 4 * (2 * 256 + 4 * 129 * 128 + 129 * 256 + 257 * 128) + 256 + 129 * 10,
    ),
}


def images(shape, count=8, seed=0):
    """Noise; with one channel mostly black, as handwritten digits are."""
    rng = np.random.default_rng(seed)
    ink = rng.random((count, *shape)) < (0.2 if shape[-1] == 1 else 1.0)
    return jnp.asarray(rng.integers(256, size=(count, *shape)) * ink, jnp.uint8)


def labels(count=8):
    return jnp.arange(count) % 10


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", MODELS | LARGE)
def test_parameter_counts(name):
    build, _, expected = (MODELS | LARGE)[name]
    params = jax.eval_shape(build().init, KEY)
    assert count(params) == expected
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("name", MODELS)
def test_loss_at_the_start_is_near_that_of_guessing(name):
    build, shape, _ = MODELS[name]
    problem = problems.classification(build())
    batch = {"x": images(shape, 32), "y": labels(32)}
    loss = jax.jit(problem["loss"])(problem["init"](KEY), batch)
    assert loss.shape == (32,) and loss.dtype == jnp.float32
    # ResNet-20's last layer sees a sum of nine blocks, hence logits of order one.
    assert abs(float(loss.mean()) - math.log(10)) < (1.0 if name == "resnet20" else 0.3)


@pytest.mark.parametrize("name", MODELS)
def test_models_built_twice_are_equal_and_do_not_retrace(name):
    build, shape, _ = MODELS[name]
    first, second = problems.classification(build()), problems.classification(build())
    assert first == second and hash(first["loss"]) == hash(second["loss"]) and hash(first["init"])
    traces = []

    @jax.jit(static_argnums=0)
    def evaluate(loss, params, batch):
        traces.append(loss)
        return loss(params, batch)

    batch = {"x": images(shape, 1), "y": labels(1)}
    params = jax.eval_shape(first["init"], KEY)
    for problem in (first, second):  # only traced: compiling takes seconds
        jax.eval_shape(lambda p, b, loss=problem["loss"]: evaluate(loss, p, b), params, batch)
    assert len(traces) == 1


def test_models_of_other_arguments_differ():
    assert models.cnn() != models.cnn(padded=True)
    assert models.cnn() != models.cnn(normalization=None)
    assert models.mlp((28, 28), (10,)) != models.mlp((28, 28), (20,))


@pytest.mark.parametrize("name", ["mlp", "cnn", "cnn_padded", "resnet20"])
def test_gradient_by_finite_differences(name):
    """Along random directions, in float64. The steps are tiny so that no ReLU or maximum switches on the way."""
    build, shape, _ = MODELS[name]
    problem = problems.classification(build())
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), problem["init"](KEY))
    batch = {"x": images(shape, 2), "y": labels(2)}
    value_and_gradient = jax.jit(jax.value_and_grad(lambda p: problem["loss"](p, batch).mean()))
    gradient = value_and_gradient(params)[1]
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(1)
    for _ in range(3):
        direction = structure.unflatten([jnp.asarray(rng.normal(size=leaf.shape)) for leaf in leaves])
        ahead, behind = (jax.tree.map(lambda p, d, h=h: p + h * d, params, direction) for h in (1e-9, -1e-9))
        slope = (value_and_gradient(ahead)[0] - value_and_gradient(behind)[0]) / 2e-9
        expected = sum(
            jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
        )
        np.testing.assert_allclose(slope, expected, rtol=1e-4)


def test_cnn_equals_the_textbook_order_of_layers():
    """Convolution, bias, ReLU, pooling, one after the other as in the paper, with flax's own layers."""
    model = models.cnn()
    params = model.init(KEY)
    x = images((28, 28, 1), 4)

    def layer(name, x):
        y = linen.Conv(params[name]["bias"].size, (5, 5), padding="VALID").apply({"params": params[name]}, x)
        return linen.max_pool(linen.relu(y), (2, 2), (2, 2))

    @jax.jit
    def textbook(x):
        x = (x.astype(jnp.float32) / 255 - 0.1307) / 0.3081
        y = layer("ConvPoolRelu_1", layer("ConvPoolRelu_0", x)).reshape(4, -1)
        y = linen.relu(y @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"])
        return y @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"]

    np.testing.assert_allclose(jax.jit(model.apply)(params, x), textbook(x), atol=1e-5)


PRECISE = {
    "logistic": lambda **options: models.logistic((28, 28, 1), normalization=models.MNIST, **options),
    "mlp": lambda **options: models.mlp((28, 28, 1), (30,), normalization=models.MNIST, **options),
    "cnn": models.cnn,
    "resnet20": lambda **options: models.resnet20((16, 16, 3), **options),
}


@pytest.mark.parametrize("name", PRECISE)
def test_bfloat16_is_of_the_arithmetic_alone(name):
    """Parameters, outputs and gradients are float32, near those of float32 and not the same."""
    plain, rough = problems.classification(PRECISE[name]()), problems.classification(PRECISE[name](dtype="bfloat16"))
    shape = (16, 16, 3) if name == "resnet20" else (28, 28, 1)
    params, batch = plain["init"](KEY), {"x": images(shape, 4), "y": labels(4)}
    jax.tree.map(np.testing.assert_array_equal, params, rough["init"](KEY))
    products = str(jax.make_jaxpr(lambda p: rough["loss"](p, batch))(params))
    assert products.count("dot_general") == products.count("preferred_element_type=float32") > 0
    if name == "resnet20":
        return  # which compiles too long
    values = [
        jax.jit(jax.value_and_grad(lambda p, loss=task["loss"]: loss(p, batch).mean()))(params)
        for task in (plain, rough)
    ]
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(values))
    difference, size = optax.tree.norm(optax.tree.sub(values[0][1], values[1][1])), optax.tree.norm(values[0][1])
    assert 1e-4 < difference / size < 0.1


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", LARGE)
def test_larger_models_keep_their_precision(name, dtype):
    build, shape, _ = LARGE[name]
    model = build(dtype=dtype)
    params = jax.eval_shape(model.init, KEY)
    x = jax.ShapeDtypeStruct((2, *shape), jnp.uint8)
    outputs, gradient = jax.eval_shape(jax.value_and_grad(lambda p, x: model.apply(p, x).sum()), params, x)
    assert {leaf.dtype for leaf in (outputs, *jax.tree.leaves(gradient))} == {jnp.dtype("float32")}
    assert ("bf16" in str(jax.make_jaxpr(model.apply)(params, x))) == (dtype is not None)


def test_a_small_transformer_learns_positions():
    """The mean of patches alone could not tell an image from the same one with its patches exchanged."""
    model = models.vit((4, 4, 1), 2, patch=2, width=8, depth=1, heads=2, normalization=None)
    params = model.init(KEY)
    x = jax.random.uniform(KEY, (1, 4, 4, 1))
    exchanged = jnp.concatenate([x[:, 2:], x[:, :2]], 1)
    without = {**params, "position": jnp.zeros_like(params["position"])}
    assert float(jnp.abs(model.apply(params, x) - model.apply(params, exchanged)).max()) > 1e-5
    np.testing.assert_allclose(model.apply(without, x), model.apply(without, exchanged), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.resnet18(groups=3), "groups must divide the 64 channels of the first stage, got 3"),
        (lambda: models.vit(patch=5), r"patch must divide the image's sides \(32, 32\), got 5"),
        (lambda: models.vit(heads=3), "heads must divide width=128, got 3"),
    ],
)
def test_sizes_that_do_not_fit(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_parameters_may_be_in_double_precision():
    model = models.mlp(4, (3,), 2, param_dtype="float64")
    params = model.init(KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float64")}
    assert model.apply(params, jnp.ones((2, 4), jnp.float32)).dtype == jnp.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of bfloat16, float16, float32, float64, got 'int8'"),
        ({"dtype": "half a byte"}, "dtype must be one of bfloat16, .*, got 'half a byte'"),
        ({"param_dtype": None}, "param_dtype must be one of .*, got None"),
    ],
)
def test_precisions_that_do_not_exist(options, message):
    with pytest.raises(ValueError, match=message):
        models.cnn(**options)


def test_start_is_uniform_in_the_fan_in():
    params = models.cnn().init(KEY)
    for name, fan_in in {"ConvPoolRelu_0": 25, "ConvPoolRelu_1": 800, "Dense_0": 1024, "Dense_1": 512}.items():
        bound = 1 / math.sqrt(fan_in)
        largest = {key: float(jnp.abs(value).max()) for key, value in params[name].items()}
        assert largest["kernel"] <= bound and largest["bias"] <= bound
        assert largest["kernel"] > 0.98 * bound


def test_start_of_resnet_is_normal_with_twice_the_inverse_fan_in():
    params = models.resnet20().init(KEY)
    kernel = params["Block_8"]["Conv_1"]["kernel"]
    standardised = kernel / math.sqrt(2 / (9 * 64))
    assert abs(float(standardised.mean())) < 0.02 and abs(float(standardised.std()) - 1) < 0.02
    assert abs(float((jnp.abs(standardised) < 1).mean()) - 0.6827) < 0.01
    np.testing.assert_array_equal(params["LayerGroupNorm_0"]["scale"], 1.0)
    np.testing.assert_array_equal(params["LayerGroupNorm_0"]["bias"], 0.0)


def test_normalisation():
    black_and_white = jnp.asarray([[[0], [255]]], jnp.uint8)
    expected = (np.array([[[0.0], [1.0]]]) - 0.1307) / 0.3081
    np.testing.assert_allclose(to_float(black_and_white, models.MNIST), expected, rtol=1e-6)
    x = images((4, 4, 3))
    expected = (np.asarray(x) / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    np.testing.assert_allclose(to_float(x, models.CIFAR10), expected, rtol=1e-5, atol=1e-6)
    floats = jnp.asarray([[1.5]], jnp.float64)
    assert to_float(floats, None) is floats
    np.testing.assert_array_equal(to_float(x.astype(jnp.int32), models.CIFAR10), to_float(x, models.CIFAR10))
    with pytest.raises(ValueError, match="normalization has 3 channels and the input's last axis 1"):
        models.resnet20((28, 28, 1))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16, bool, np.float32])
def test_features_that_are_whole_numbers_are_taken_as_they_are(dtype):
    model, x = models.linear(3), np.array([[1, 0, 1], [0, 1, 1]], dtype)
    params = model.init(KEY)
    w = np.asarray(jax.tree.leaves(params)[0])[:, 0]
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x)), x.astype(np.float32) @ w, rtol=1e-6)
    np.testing.assert_allclose(  # but bytes are pixels
        model.apply(params, jnp.asarray(x, jnp.uint8)), x.astype(np.float32) @ w / 255, rtol=1e-6
    )


def test_a_missing_channel_axis_is_one_channel():
    model, x = models.cnn(), images((28, 28, 1), 2)
    params = model.init(KEY)
    apply = jax.jit(model.apply)
    np.testing.assert_array_equal(apply(params, x), apply(params, x[..., 0]))


def test_linear_is_a_scalar_product_in_the_datas_precision():
    model = models.linear(50)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.init(KEY))
    assert count(params) == 50 and float(jnp.abs(jax.tree.leaves(params)[0]).max()) <= 1 / math.sqrt(50)
    x, y = np.random.default_rng(0).normal(size=(7, 50)), np.arange(7.0)
    w = np.asarray(jax.tree.leaves(params)[0])[:, 0]
    loss = problems.regression(model)["loss"](params, {"x": jnp.asarray(x), "y": jnp.asarray(y)})
    np.testing.assert_allclose(loss, 0.5 * (x @ w - y) ** 2, rtol=1e-12)


def test_regression_rejects_targets_that_would_broadcast():
    model = models.linear(5)
    batch = {"x": jnp.ones((3, 5)), "y": jnp.ones((3, 1))}
    with pytest.raises(ValueError, match="shape"):
        problems.regression(model)["loss"](model.init(KEY), batch)


def test_cross_entropy_and_its_gradient_equal_optax():
    """Logits of any size, minus infinity (an excluded class) too; labels as data sets have them."""
    loss = problems.classification(models.Model(init=lambda key: {}, apply=lambda params, x: params))["loss"]
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(6, 10)) * 100, jnp.float64).at[0, 4].set(-jnp.inf)
    y = np.array([9, 0, 3, 3, 7, 1], np.uint8)

    def expected(logits):
        return optax.softmax_cross_entropy_with_integer_labels(logits, y.astype(np.int32))

    np.testing.assert_allclose(loss(logits, {"x": y, "y": y}), expected(logits), rtol=1e-14)
    ours = jax.grad(lambda logits: loss(logits, {"x": y, "y": y}).mean())(logits)
    np.testing.assert_allclose(ours, jax.grad(lambda logits: expected(logits).mean())(logits), rtol=1e-14, atol=1e-300)


def test_accuracy_is_one_where_the_largest_logit_is_the_label():
    model = models.Model(init=lambda key: {}, apply=lambda params, x: x)
    correct = problems.classification(model)["metrics"]["accuracy"]
    batch = {"x": jnp.asarray([[0.0, 1.0], [2.0, 1.0]], jnp.float32), "y": jnp.asarray([1, 1], jnp.uint8)}
    np.testing.assert_array_equal(correct({}, batch), [1.0, 0.0])


def test_a_number_is_the_length_of_a_vector():
    assert fa.models.logistic(784, 10) == fa.models.logistic((784,), 10)
    assert fa.models.mlp(784, 20) == fa.models.mlp((784,), (20,))


def test_a_classification_without_evaluation_data():
    fields = {"x": np.zeros((4, 2)), "y": np.arange(4)}
    data = fa.FederatedData.from_arrays(fields, [[0, 1], [2, 3]])
    task = problems.classification(fa.models.logistic(2, 4), accuracy=False)
    assert fa.Problem(**task, data=data).metrics == ()
