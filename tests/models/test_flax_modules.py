"""Modules of flax as models: as they compute by themselves, and refused where they are no pure function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from test_models import count

from fedjax_admm import models

OPTIMIZED = True  # networks compute longer than they compile

KEY = jax.random.key(0)


class LinenNet(linen.Module):
    normalized: bool = False

    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Dense(4)(x))
        return linen.Dense(2)(linen.BatchNorm(use_running_average=False)(x) if self.normalized else x)


def build_nnx(rngs):
    return nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 2, rngs=rngs))


class NnxNet(nnx.Sequential):
    def __init__(self, rngs):
        super().__init__(*build_nnx(rngs).layers)


def build_nnx_with_batch_norm(rngs):
    return nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs))


FLAX = {
    "linen": lambda: models.from_flax(LinenNet(), jnp.ones((1, 3), jnp.float32)),
    "nnx function": lambda: models.from_flax(build_nnx),
    "nnx class": lambda: models.from_flax(NnxNet),
    "nnx module": lambda: models.from_flax(build_nnx(nnx.Rngs(0))),
}


@pytest.mark.parametrize("name", FLAX)
def test_any_flax_module_is_a_model(name):
    model = FLAX[name]()
    params = model.init(KEY)
    assert count(params) == 3 * 4 + 4 + 4 * 2 + 2
    assert type(params) is dict and all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    first, second = (layer for _, layer in sorted((params.get("layers") or params).items()))
    expected = jax.nn.relu(x @ first["kernel"] + first["bias"]) @ second["kernel"] + second["bias"]
    np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-5, atol=1e-6)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    gradients = jax.vmap(jax.grad(lambda p: jnp.sum(model.apply(p, x) ** 2)))(stacked)
    assert jax.tree.structure(gradients) == jax.tree.structure(params)
    assert FLAX[name]().apply == model.apply and hash(FLAX[name]().apply) == hash(model.apply)


def test_nnx_function_starts_by_the_key_and_nnx_module_from_what_it_has():
    by_key = models.from_flax(build_nnx)
    one, other = by_key.init(jax.random.key(1)), by_key.init(jax.random.key(2))
    assert not np.array_equal(one["layers"][0]["kernel"], other["layers"][0]["kernel"])
    module = build_nnx(nnx.Rngs(3))
    own = models.from_flax(module).init(KEY)
    np.testing.assert_array_equal(own["layers"][0]["kernel"], module.layers[0].kernel[...])


@pytest.mark.parametrize(
    ("module", "sample", "names"),
    [
        (LinenNet(normalized=True), jnp.ones((2, 3)), "submodule BatchNorm_0 has .*'batch_stats'"),
        (build_nnx_with_batch_norm, None, r"submodule layers.1 \(BatchNorm\) has 'mean', a BatchStat"),
        (build_nnx_with_batch_norm(nnx.Rngs(0)), None, r"submodule layers.1 \(BatchNorm\)"),
        (linen.Dropout(0.5, deterministic=False), jnp.ones((2, 3)), "random numbers"),
        (LinenNet(), None, "sample_input"),
        ("not a module", None, "not a module"),
    ],
)
def test_what_is_no_pure_function_of_parameters_is_rejected(module, sample, names):
    with pytest.raises(ValueError, match=names):
        models.from_flax(module, sample)


class Sequences(nnx.Module):
    """Attention, a recurrent layer and a dropout, each with a random state of its own."""

    def __init__(self, cell, dropout, rngs):
        options = dict(dropout_rate=0.5, deterministic=dropout != "attention", decode=False)
        self.attention = nnx.MultiHeadAttention(2, 4, rngs=rngs, **options)
        self.layers = nnx.List([nnx.RNN(cell(4, 3, rngs=rngs), rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs, deterministic=dropout != "dropout")

    def __call__(self, x):
        return self.dropout(self.layers[0](self.attention(x)))


SEQUENCE = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)


@pytest.mark.parametrize("cell", [nnx.GRUCell, nnx.LSTMCell])
def test_random_state_that_is_not_used_is_accepted(cell):
    model = models.from_flax(lambda rngs: Sequences(cell, None, rngs))
    module = Sequences(cell, None, nnx.Rngs(3))
    params = models.from_flax(module).init(KEY)
    np.testing.assert_allclose(jax.jit(model.apply)(params, SEQUENCE), module(SEQUENCE), rtol=1e-5, atol=1e-6)
    assert jax.tree.structure(params) == jax.tree.structure(jax.eval_shape(model.init, KEY))


@pytest.mark.parametrize(
    ("dropout", "submodule"),
    [("attention", r"submodule attention \(MultiHeadAttention\)"), ("dropout", r"submodule dropout \(Dropout\)")],
)
def test_random_state_that_changes_the_outputs_is_refused(dropout, submodule):
    model = models.from_flax(lambda rngs: Sequences(nnx.GRUCell, dropout, rngs))
    with pytest.raises(ValueError, match=submodule + " draws random numbers"):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, KEY), SEQUENCE)


class LinenSequences(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.RNN(linen.LSTMCell(3))(linen.MultiHeadDotProductAttention(2)(x))


def test_linen_sequence_modules_are_models():
    model = models.from_flax(LinenSequences(), SEQUENCE)
    params = model.init(KEY)
    expected = LinenSequences().apply({"params": params}, SEQUENCE)
    np.testing.assert_allclose(jax.jit(model.apply)(params, SEQUENCE), expected, rtol=1e-5, atol=1e-6)


def test_any_flax_module_in_another_precision():
    module, x = linen.Dense(3), jnp.ones((2, 5), jnp.float32) / 3
    plain, rough = models.from_flax(module, x), models.from_flax(module, x, dtype=jnp.bfloat16, param_dtype="float64")
    assert rough == models.from_flax(module, x, dtype=jnp.bfloat16, param_dtype="float64") and hash(rough)
    params = rough.init(KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float64")}
    outputs = rough.apply(params, x)
    assert outputs.dtype == jnp.float64
    difference = float(jnp.abs(outputs - plain.apply(plain.init(KEY), x)).max())
    assert 1e-5 < difference < 1e-1
