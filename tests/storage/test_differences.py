"""What may differ between a run in a directory and the call that goes on with it."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import test_runs
from test_runs import LOCAL, assert_identical, crash_in, crashed, problem_of, run

import fedjax_admm as fa
from fedjax_admm.storage import growing_files

save_often = test_runs.save_often


def changed_rate(rate):
    return optax.sgd(rate, momentum=0.5)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("algorithm.penalty: 0.1 there, 0.2 now", {"algorithm": fa.fedadmm_insa(LOCAL, penalty=0.2, mu=1.5)}),
        ("algorithm.optimizer", {"algorithm": fa.fedadmm_insa(fa.LocalSolver(0.05, 4, 3, changed_rate), 0.1, mu=1.5)}),
        ("rounds: 12 there, 11 now", {"rounds": 11}),
        ("seed: 1 there, 2 now", {"seed": 2}),
        ("participation: 2 there, 3 now", {"participation": 3}),
        ("evaluate_every", {"evaluate_every": 4}),
        ("execution.lanes: 'auto' there, 2 now", {"execution": fa.Execution(lanes=2)}),
        ("initial_params", {"initial_params": jnp.ones(5)}),
        ("problem.data", {"problem": problem_of(seed=5)}),
        ("problem.computes.loss", {"problem": "another loss"}),
    ],
)
def test_other_settings_are_refused_with_the_difference(tmp_path, named, options):
    if options.get("problem") == "another loss":
        base, factor = problem_of(), 2.0
        loss = base.loss
        options = {"problem": fa.Problem(base.init, lambda w, b: factor * loss(w, b), base.data, base.regularizer)}
    run(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.*")}
    with pytest.raises(ValueError, match="other settings") as refused:
        run(tmp_path, **options)
    assert named in str(refused.value) and "\n" not in str(refused.value)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.*")} == before


def test_what_may_change(tmp_path):
    crashed(tmp_path, 5)
    result = run(tmp_path, checkpoint_seconds=99, progress=True)
    assert_identical(result, run(None))


def test_one_client_is_not_all_of_them(tmp_path):
    run(tmp_path, participation=1)
    with pytest.raises(ValueError, match=r"participation: 1 there, 1\.0 now"):
        run(tmp_path, participation=1.0)


def test_equal_settings_in_other_forms_are_the_same(tmp_path):
    cohorts = np.array([[0, 1]] * 12)
    for form in (cohorts, cohorts.tolist(), cohorts.astype(np.int32)):
        run(tmp_path, participation=form, evaluate_every=np.int64(2))


@pytest.mark.parametrize("done", ["finished", "cut off"])
def test_a_run_with_more_rounds_ends_like_one_that_had_them_from_the_start(tmp_path, done):
    options = dict(evaluate_clients_every=3)
    if done == "finished":
        run(tmp_path / "run", **options)
    else:
        crashed(tmp_path / "run", 7, **options)
    rounds = 101
    once, longer = (run(place, rounds=rounds, **options) for place in (tmp_path / "once", tmp_path / "run"))
    assert_identical(longer, once)
    np.testing.assert_array_equal(longer.client_metrics["loss"], once.client_metrics["loss"])
    for name in ("solves.npy", "client_metrics.npy", "clients.npy"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "once" / name).read_bytes()
    stored = fa.read_run(tmp_path / "run")  # which checks all checksums
    assert (stored.status, stored.rounds) == ("finished", rounds)
    assert_identical(run(tmp_path / "run", rounds=rounds, **options), once)


def test_a_crash_while_a_run_is_made_longer_loses_nothing(tmp_path, monkeypatch):
    run(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(growing_files, "lengthen_npy", crash_in(None))  # fails
        with pytest.raises(TypeError):
            run(tmp_path, rounds=14)
    assert_identical(run(tmp_path, rounds=14), run(None, rounds=14))


def test_a_run_whose_last_evaluation_is_out_of_turn_cannot_be_made_longer(tmp_path):
    run(tmp_path, rounds=5)
    with pytest.raises(ValueError, match="round 5 was evaluated only because it was the last"):
        run(tmp_path, rounds=6)
    assert fa.read_run(tmp_path).status == "finished"
