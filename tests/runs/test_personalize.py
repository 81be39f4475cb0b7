"""Fine-tuning against full-gradient descent, and against steps of batches one client after the other."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import optax
import pytest
from federations import epoch_order, least_squares
from test_devices import in_a_process
from test_every_client import INSA, LOCAL, SIZES, held_out, loop, problem_with

import fedjax_admm as fa


def descend(w, x, y, steps, rate):
    for _ in range(steps):
        w = w - rate * (x.T @ (x @ w - y) / len(y) + 0.1 * w)
    return w


@pytest.mark.parametrize("population", ["device", "host"])
def test_full_gradient_steps(population):
    problem = problem_with(held_out())
    result = fa.simulate(problem, INSA, 3, participation=3, progress=False)
    local, execution = fa.LocalSolver(learning_rate=0.05), fa.Execution(population=population)
    found = fa.personalize(result, problem, local, epochs=4, execution=execution)
    _, xs, ys = least_squares(SIZES, heterogeneity=0.4)
    z = np.asarray(result.params)
    tuned = [descend(z, x, y, 4, 0.05) for x, y in zip(xs, ys, strict=True)]
    expected = {"before": [z] * 7, "after": tuned, "own": np.asarray(result.state.client_params)}
    np.testing.assert_allclose(np.asarray(found.client_params), tuned, rtol=1e-9)
    for when, params in expected.items():
        for name, values in loop(problem, params).items():
            np.testing.assert_allclose(getattr(found, when)[name], values, rtol=1e-9)
    assert found.sizes.tolist() == SIZES and found.about.evaluated_rows.tolist() == [2, 1, 9, 1, 4, 3, 2]
    sample = fa.personalize(result, problem, local, epochs=4, clients=3)
    np.testing.assert_allclose(sample.after["loss"], found.after["loss"][sample.clients], rtol=1e-9)
    assert len(sample.epochs) == 3


@pytest.mark.parametrize("optimizer", [optax.sgd, optax.adam])
def test_steps_of_batches_end_within_an_epoch(optimizer):
    """Seven steps of four rows: a third of the epochs of a client of 61 rows, and seven epochs of one of four."""
    problem = problem_with()
    result = fa.simulate(problem, fa.fedavg(LOCAL), 1, participation=3, progress=False)
    local = fa.LocalSolver(learning_rate=0.05, batch_size=4, optimizer=optimizer)
    found = fa.personalize(result, problem, local, steps=7)
    _, xs, ys = least_squares(SIZES, heterogeneity=0.4)
    order = epoch_order(0, SIZES)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        w, made, done = np.asarray(result.params), optimizer(0.05), 0
        state = made.init(w)
        for epoch in range(7):
            rows = order(0, i, epoch)
            for start in range(0, len(rows), 4):
                batch = rows[start : start + 4]
                gradient = x[batch].T @ (x[batch] @ w - y[batch]) / len(batch) + 0.1 * w
                if done < 7:
                    updates, state = made.update(gradient, state, w)
                    w, done = np.asarray(w + updates), done + 1
        np.testing.assert_allclose(np.asarray(found.client_params)[i], w, rtol=1e-9)
    assert found.epochs.tolist() == [-(-7 // -(-n // 4)) for n in SIZES]
    assert found.own == {} and len(found.table().rows) == 2


def test_what_a_run_on_several_devices_left_goes_on_anywhere():
    """Its parameters are bound to one of them; fine-tuning and runs that start from them may have others."""
    in_a_process("""
        from test_every_client import INSA, LOCAL, problem_with
        problem, found = problem_with(), []
        for first, then in ((2, 4), (4, 1), (1, 2)):
            execution, other = fa.Execution(mesh=first), fa.Execution(mesh=then)
            result = fa.simulate(problem, INSA, 2, participation=4, execution=execution, progress=False)
            tuned = fa.personalize(result, problem, LOCAL, epochs=2, execution=other)
            again = fa.simulate(problem, INSA, 1, initial_params=result.params, execution=other, progress=False)
            found.append((tuned.after["loss"], tuned.own["loss"], np.asarray(again.params)))
        for one in found[1:]:
            for value, truth in zip(one, found[0], strict=True):
                np.testing.assert_allclose(value, truth, rtol=1e-9)
    """)


def test_bad_input():
    problem = problem_with()
    result = fa.simulate(problem, fa.fedavg(LOCAL), 1, participation=3, progress=False)
    for arguments, options, message in (
        ((result, problem, LOCAL), {"epochs": 1, "steps": 2}, "give epochs or steps, not both"),
        ((result, problem, LOCAL), {"steps": 0}, "steps must be at least 1, got 0"),
        ((result, problem, INSA), {}, "local must be a fa.LocalSolver"),
        ((problem, problem, LOCAL), {}, "result must be what fa.simulate returned"),
        ((result, problem, LOCAL), {"clients": 8}, "clients must be at most the number of clients, 7, got 8"),
        ((result, problem, LOCAL), {"clients": "some"}, "clients must be 'all' or a number of clients, got 'some'"),
        (
            (result, least_squares([3])[0], LOCAL),
            {},
            "problem has 1 clients, and result is of 7: give the run's problem",
        ),
        ((result, least_squares(SIZES, dimension=4)[0], LOCAL), {}, "initial_params must have the shape"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            fa.personalize(*arguments, **options)
    assert dataclasses.is_dataclass(fa.Personalized)
