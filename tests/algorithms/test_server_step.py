"""The server's step: any optimizer along the averaged update, against the same steps done by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import least_squares

import fedjax_admm as fa

SIZES = [6, 11, 3, 8]
FULL = fa.LocalSolver(learning_rate=0.05, max_epochs=3)  # full gradients: no order of rows, so rounds are alike
START = np.linspace(-1, 1, 5)


def momentum(rate):
    return optax.sgd(rate, momentum=0.9)


def run(algorithm, rounds=4, **options):
    problem, *_ = least_squares(SIZES)
    return fa.simulate(problem, algorithm, rounds, **dict(initial_params=START, progress=False) | options)


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam, optax.yogi, momentum])
@pytest.mark.parametrize(
    "make", [fa.fedavg, lambda local, **options: fa.fedprox(local, 0.3, **options)], ids=["avg", "prox"]
)
def test_the_averaged_update_is_the_negative_of_a_gradient(make, optimizer):
    ours = run(make(FULL, server=fa.ServerStep(optimizer, learning_rate=0.3)))
    z, made = jnp.asarray(START), optimizer(0.3)
    state = made.init(z)
    for _ in range(4):
        update = run(make(FULL), rounds=1, initial_params=z).params - z
        step, state = made.update(-update, state, z)
        z = optax.apply_updates(z, step)
    np.testing.assert_allclose(ours.params, z, rtol=1e-9)


def test_without_one_the_step_is_the_update():
    plain, said = (run(fa.fedavg(FULL, server=server)) for server in (None, fa.ServerStep()))
    np.testing.assert_array_equal(plain.params, said.params)
    half = run(fa.fedavg(FULL, server=fa.ServerStep(learning_rate=0.5)), rounds=1)
    np.testing.assert_allclose(half.params - START, (run(fa.fedavg(FULL), rounds=1).params - START) / 2, rtol=1e-12)


def test_scaffolds_rate_is_a_plain_steps():
    one = run(fa.scaffold(FULL, server_learning_rate=0.7))
    other = run(fa.scaffold(FULL, server=fa.ServerStep(learning_rate=0.7)))
    np.testing.assert_array_equal(one.params, other.params)
    assert not np.allclose(run(fa.scaffold(FULL, server=fa.ServerStep(optax.adam, 0.1))).params, one.params)


def test_a_run_goes_on_with_the_optimizers_state(tmp_path):
    algorithm = fa.fedavg(FULL, server=fa.ServerStep(optax.adam, learning_rate=0.1))
    whole = run(algorithm, rounds=5)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(algorithm, rounds=5, run_dir=tmp_path, on_round=stop, checkpoint_seconds=0)
    again = run(algorithm, rounds=5, run_dir=tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.state, whole.state)


BAD = {
    "no step": (lambda: fa.fedavg(FULL, server=optax.adam), "server must be an object made by fa.ServerStep"),
    "an optimizer": (lambda: fa.fedavg(FULL, server=optax.adam(0.1)), r"server is an optimizer: give fa.ServerStep\(optax.adam"),
    "no rate": (lambda: run(fa.fedavg(FULL, server=fa.ServerStep(lambda: optax.sgd(1.0)))), "optimizer must be a function of the learning rate"),
    "a line search": (lambda: run(fa.fedavg(FULL, server=fa.ServerStep(optax.lbfgs))), "optimizer must step with a gradient alone"),
    "average of all": (lambda: fa.fedavg(FULL, average="all", server=fa.ServerStep()), "server .*needs average='selected'"),
    "two rates": (
        lambda: fa.scaffold(FULL, server_learning_rate=0.5, server=fa.ServerStep()), "server and server_learning_rate both",
    ),
    "rate": (lambda: fa.ServerStep(learning_rate=0), "learning_rate must be above 0, got 0"),
    "a made optimizer": (lambda: fa.ServerStep(optax.adam(0.1)), "optimizer must be a factory .*such as optax.adam"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_steps(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()
