"""Models with their parameters in one array compute what they computed before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_admm as fa
from fedjax_admm import models

KEY = jax.random.key(0)


def small():
    return models.transformer(9, length=5, width=8, heads=2, blocks=1)


def test_outputs_and_gradients_are_the_same():
    model, one = small(), models.packed(small())
    params, flat = model.init(KEY), one.init(KEY)
    x = jnp.arange(10, dtype=jnp.uint8).reshape(2, 5) % 9
    assert flat.ndim == 1 and flat.size == sum(leaf.size for leaf in jax.tree.leaves(params))
    jax.tree.map(np.testing.assert_array_equal, params, models.unpacked(one, flat))

    def total(apply):
        return lambda params: jnp.sum(jnp.sin(apply(params, x)))

    np.testing.assert_allclose(model.apply(params, x), one.apply(flat, x), rtol=1e-6)
    gradient, other = jax.grad(total(model.apply))(params), jax.grad(total(one.apply))(flat)
    for leaf, wanted in zip(jax.tree.leaves(models.unpacked(one, other)), jax.tree.leaves(gradient), strict=True):
        np.testing.assert_allclose(leaf, wanted, atol=1e-5)
    several = models.unpacked(one, jnp.stack([flat, 2 * flat]))
    jax.tree.map(lambda leaf, wanted: np.testing.assert_array_equal(leaf[1], 2 * wanted), several, params)


def test_packed_models_are_equal_where_the_models_are():
    assert models.packed(small()) == models.packed(small()) and hash(models.packed(small()).apply)
    assert models.packed(small()) != models.packed(models.gru(9))


def test_what_cannot_be_packed_is_told():
    class Mixed(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.Linear(2, 2, rngs=rngs)
            self.b = nnx.Linear(2, 2, param_dtype=jnp.bfloat16, rngs=rngs)

        def __call__(self, x):
            return self.b(self.a(x))

    with pytest.raises(ValueError, match="one dtype to be packed, got bfloat16, float32"):
        models.packed(models.from_flax(lambda rngs: Mixed(rngs)))
    with pytest.raises(ValueError, match=r"fa\.models\.packed returned"):
        models.unpacked(small(), small().init(KEY))


def test_runs_are_the_same():
    results = []
    for model in (models.gru(76, features=3, hidden=4), models.packed(models.gru(76, features=3, hidden=4))):
        example = fa.examples.text_mini(model=model, learning_rate=0.5, length=8, num_clients=2, max_epochs=1, rounds=1)
        algorithm = example.algorithm("fedavg")
        results.append(fa.simulate(example.problem, algorithm, rounds=1, participation=1, progress=False))
    np.testing.assert_allclose(results[0].history["loss"], results[1].history["loss"], rtol=1e-4)
