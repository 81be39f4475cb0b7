"""FedAvgM, FedAdam, FedYogi and FedAdagrad against their papers' pseudocode in NumPy."""

from __future__ import annotations

import functools

import jax
import numpy as np
import optax
import pytest
from compilations import compilations
from federations import least_squares
from pseudocode import COHORTS, LOCAL, RATE, SIZES, START, UNEQUAL, batches, close, descend, run

import fedjax_admm as fa

ETA, BETA1, BETA2, TAU = 0.3, 0.8, 0.95, 0.02
RULES = {
    "fedadagrad": lambda v, d: v + d**2,
    "fedadam": lambda v, d: BETA2 * v + (1 - BETA2) * d**2,
    "fedyogi": lambda v, d: v - (1 - BETA2) * d**2 * np.sign(v - d**2),
}


@functools.cache
def federation():
    return least_squares(SIZES, weights=UNEQUAL)


def average_change(xs, ys, z, k, cohort):
    """Delta of round k: the mean of the selected clients' updates, by their weights."""
    ends = [descend(xs[i], ys[i], z, batches(k, i), RATE[i]) for i in cohort]
    return sum(UNEQUAL[i] * (end - z) for i, end in zip(cohort, ends, strict=True)) / UNEQUAL[cohort].sum()


def adaptive(rule, eta=ETA, beta1=BETA1, tau=TAU):
    """Reddi et al. 2021, Algorithm 2: (z, m, v)."""
    _, xs, ys = federation()
    z, m, v = START, np.zeros(5), np.full(5, tau**2)
    for k, cohort in enumerate(COHORTS):
        delta = average_change(xs, ys, z, k, cohort)
        m = beta1 * m + (1 - beta1) * delta
        v = rule(v, delta)
        z = z + eta * m / (np.sqrt(v) + tau)
    return z, m, v


def made(name, **options):
    beta2 = {} if name == "fedadagrad" else {"beta2": BETA2}
    numbers = dict(server_learning_rate=ETA, beta1=BETA1, server_tau=TAU) | beta2 | options
    return getattr(fa, name)(LOCAL, **numbers)


@pytest.mark.parametrize("name", RULES)
def test_the_adaptive_servers_are_reddis(name):
    result = run(federation()[0], made(name))
    z, m, v = adaptive(RULES[name])
    close(result.params, z)
    close(result.state.server["optimizer"].mean, -m)
    close(result.state.server["optimizer"].square, v)
    np.testing.assert_array_equal(result.history["communicated_floats"][1:], 4 * (5 + 5))


def test_yogi_falls_and_rises():
    """Its sign has both values in the test above, else it would be Adam or Adagrad with another factor."""
    _, xs, ys = federation()
    signs, v, z = [], np.full(5, TAU**2), START
    for k, cohort in enumerate(COHORTS):
        delta = average_change(xs, ys, z, k, cohort)
        signs.append(np.sign(v - delta**2))
        v = RULES["fedyogi"](v, delta)
        z = z + ETA * delta
    assert (np.array(signs) > 0).any() and (np.array(signs) < 0).any()


def test_adams_bias_is_not_corrected():
    """optax's Adam is another method."""
    other = run(federation()[0], fa.fedavg(LOCAL, server=fa.ServerStep(optax.adam, learning_rate=ETA)))
    assert np.abs(other.params - adaptive(RULES["fedadam"])[0]).max() > 0.1


def test_fedavgm_is_hsus():
    _, xs, ys = federation()
    z, v = START, np.zeros(5)
    for k, cohort in enumerate(COHORTS):
        v = 0.7 * v + average_change(xs, ys, z, k, cohort)
        z = z + 0.6 * v
    close(run(federation()[0], fa.fedavgm(LOCAL, server_learning_rate=0.6, server_momentum=0.7)).params, z)
    plain = run(federation()[0], fa.fedavgm(LOCAL, server_momentum=0.0)).params
    close(plain, run(federation()[0], fa.fedavg(LOCAL)).params, 1e-15)


def test_its_optimizers_are_for_any_method():
    """SCAFFOLD and FedProx step with them as well; as a step of FedAvg they are the methods themselves."""
    step = fa.ServerStep(fa.server_optimizers.yogi, ETA, options={"beta1": BETA1, "beta2": BETA2, "tau": TAU})
    same = run(federation()[0], fa.fedavg(LOCAL, server=step))
    np.testing.assert_array_equal(same.params, run(federation()[0], made("fedyogi")).params)
    for algorithm in (fa.scaffold(LOCAL, server=step), fa.fedprox(LOCAL, 0.3, server=step)):
        assert np.isfinite(run(federation()[0], algorithm).history["loss"]).all()


def test_numbers_compile_nothing():
    run(federation()[0], made("fedadam"))
    with compilations() as compiled:
        run(federation()[0], made("fedadam", beta1=0.5, beta2=0.9, server_tau=1, server_learning_rate=1))
    assert "jit(device_rounds)" not in compiled


def test_names_tell_them_apart():
    shown = [repr(make(LOCAL)).partition("(")[0] for make in (fa.fedavg, fa.fedavgm, fa.fedadam, fa.fedyogi)]
    assert shown == ["FedAvg", "FedAvgM", "FedAdam", "FedYogi"]


def test_they_are_resumed_from_their_settings(tmp_path):
    """The optimizer and its numbers are recreated, and its state goes on."""
    example = fa.examples.linear_regression(num_clients=4, rows_per_client=10, dimension=5, rounds=4)
    algorithm = example.algorithm("fedyogi", beta2=0.9, server_learning_rate=0.5)

    def stop(row):
        if row["round"] == 2:
            raise KeyboardInterrupt

    settings = dict(example.run_settings, progress=False)
    with pytest.raises(KeyboardInterrupt):
        fa.simulate(example.problem, algorithm, run_dir=tmp_path, on_round=stop, checkpoint_seconds=0, **settings)
    resumed = fa.resume(tmp_path, progress=False)
    whole = fa.simulate(example.problem, algorithm, **settings)
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)


BAD = {
    "rate": (lambda: fa.fedadam(LOCAL, server_learning_rate=0), "server_learning_rate must be above 0, got 0"),
    "beta1": (lambda: fa.fedadam(LOCAL, beta1=1), "beta1 must be below 1, got 1"),
    "beta2": (lambda: fa.fedyogi(LOCAL, beta2=-0.1), "beta2 must be at least 0, got -0.1"),
    "tau": (lambda: fa.fedadagrad(LOCAL, server_tau=0), "server_tau must be above 0, got 0"),
    "momentum": (lambda: fa.fedavgm(LOCAL, server_momentum=1), "server_momentum must be below 1, got 1"),
    "an option that is none": (
        lambda: run(federation()[0], fa.fedavg(LOCAL, server=fa.ServerStep(optax.sgd, options={"momentu": 0.9}))),
        "optimizer must be a function of the learning rate and of options: .*momentu",
    ),
    "options of words": (lambda: fa.ServerStep(options={"momentum": "much"}), r"options\['momentum'\] must be a number, got 'much'"),
    "options without names": (lambda: fa.LocalSolver(0.1, options=[0.9]), r"options must be numbers by names, such as .*, got \[0.9\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
