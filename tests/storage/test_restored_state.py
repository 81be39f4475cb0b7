"""What a run goes on from: the newest state that is what was written, and every round that was recorded."""

from __future__ import annotations

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.storage import checkpoints
from fedjax_admm.storage.checkpoints import Checkpoints

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
ALGORITHM = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5)
STATE = {"w": np.arange(1, 7, dtype=np.float32).reshape(2, 3)}
OTHER = {
    "values": lambda array: array.at[0, 0].add(1),
    "shape": lambda array: array.reshape(3, 2),  # of the same bytes
    "dtype": lambda array: jax.lax.bitcast_convert_type(array, jnp.int32),  # of the same bytes
}


@pytest.fixture(autouse=True)
def save_often(monkeypatch):
    monkeypatch.setattr(checkpoints, "SHARE", np.inf)


def run(run_dir, **options):
    settings = dict(rounds=6, participation=2, evaluate_every=2, progress=False, checkpoint_seconds=0)
    problem, *_ = least_squares([6, 11, 3, 8, 5])
    return fa.simulate(problem, ALGORITHM, run_dir=run_dir, **settings | options)


@pytest.mark.parametrize("other", OTHER)
def test_a_state_that_is_not_what_was_written_is_passed_over(tmp_path, monkeypatch, other):
    """Whatever orbax makes of a damaged array: other values, or as some versions do, another shape or dtype."""
    kept = Checkpoints(tmp_path / "checkpoints", seconds=0)
    kept.save(1, STATE)
    kept.save(2, jax.tree.map(lambda array: 2 * array, STATE))
    restore = ocp.CheckpointManager.restore

    def damaged(self, step, *args, **kwargs):
        found = restore(self, step, *args, **kwargs)
        if step == 2 and found.get("state") is not None:
            return {"state": {name: OTHER[other](leaf) for name, leaf in found["state"].items()}}
        return found

    monkeypatch.setattr(ocp.CheckpointManager, "restore", damaged)
    with pytest.warns(RuntimeWarning, match=r"\['w'\] is not what was written"):
        round, state = kept.restore(STATE, last=2)
    assert round == 1
    np.testing.assert_array_equal(state["w"], STATE["w"], strict=True)


def test_another_rounds_state_in_a_checkpoint_is_noticed(tmp_path):
    """Every file is sound and of the right kind, so that nothing but the checksums tells."""
    first = run(tmp_path)
    older, newest = sorted((tmp_path / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    shutil.rmtree(newest / "state")
    shutil.copytree(older / "state", newest / "state")
    with pytest.warns(RuntimeWarning, match="is not what was written"):
        again = run(tmp_path)
    for mine, its in zip(jax.tree.leaves(again.state), jax.tree.leaves(first.state), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_no_round_of_a_finished_run_is_done_again(tmp_path):
    first = run(tmp_path)
    records = {name: (tmp_path / name).read_bytes() for name in ("history.csv", "solves.npy")}
    told = []
    again = run(tmp_path, on_round=told.append)
    assert not told
    assert records == {name: (tmp_path / name).read_bytes() for name in records}
    for name in first.history:
        np.testing.assert_array_equal(again.history[name], first.history[name], err_msg=name)
    for mine, its in zip(*(jax.tree.leaves((run.params, run.solves)) for run in (again, first)), strict=True):
        np.testing.assert_array_equal(mine, its)
