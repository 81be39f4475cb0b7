"""The table of history columns: what it says is true of runs, and nothing else says it again."""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.core.columns import COLUMNS, Column, FinishedRound, Kind, look_up
from fedjax_admm.results.comparison import key_figures
from fedjax_admm.show import report

PACKAGE = Path(fa.__file__).parent
LOCAL = fa.LocalSolver(learning_rate=0.05, max_epochs=3)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def simulate(make=fa.fedadmm_in, **settings) -> fa.Result:
    problem, *_ = least_squares([8, 12, 10, 9])
    return fa.simulate(problem, make(LOCAL, penalty=1.0), rounds=4, progress=False, **settings)


@pytest.fixture(scope="module")
def run() -> fa.Result:
    """One that has every column but the loss above an optimum, and what evaluating clients takes."""
    faults = fa.Faults(dropout=0.3, corruption="scale", corrupted=[1], clip_norm=10.0)
    client_time = fa.ClientTime([100, 50, 200, 1], deadline=0.5)
    return simulate(fa.fedadmm_insa, faults=faults, client_time=client_time, participation=fa.availability.always(3))


def test_a_run_has_the_columns_in_their_order(run):
    assert list(run.history) == [name for name in COLUMNS if name not in ("excess_loss", "client_eval_seconds")]
    conditional = {name for name, column in COLUMNS.items() if column.needs}
    assert {"late_clients", "dropped_clients", "simulated_seconds"} < conditional
    assert not conditional & set(simulate().history)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=lambda column: column.name)
def test_round_0_has_a_value_of_what_is_not_done_in_rounds(column, run):
    """Drawn with round 0 are what is evaluated and what there is already; the work begins with round 1."""
    if column.name not in run.history:
        return
    drawn = fa.plots.plot_column(run, column.name)
    (line,) = drawn.lines
    assert (line.get_xdata()[0] == 0) == (column.kind in (Kind.NUMBER, Kind.EVALUATED, Kind.AFTER))
    assert drawn.get_ylabel() == column.label


@pytest.mark.parametrize("column", COLUMNS.values(), ids=lambda column: column.name)
def test_what_a_column_is_stands_in_the_documentation(column):
    line = f"{column.name} (with {column.needs}): " if column.needs else f"{column.name}: "
    assert line + column.description in fa.History.__doc__


def test_counts_of_clients_are_those_of_the_solves(run):
    reasons = run.solves.stop_reason
    for name, column in COLUMNS.items():
        if name.endswith("_clients"):
            assert column.kind is Kind.CLIENTS
            expected = np.sum(reasons == name.removesuffix("_clients"), axis=1)
            np.testing.assert_array_equal(run.history[name], [0, *expected])


def test_a_metric_is_a_column_of_which_more_is_better():
    metric = look_up("my own")
    assert metric.kind is Kind.EVALUATED and not metric.less_is_better and metric.label == "my own"


def test_a_new_column_is_one_entry(monkeypatch):
    """Computed, kept, summed, drawn and reported without another line."""
    most = Column(
        "epochs_most",
        label="epochs, most of a client",
        description="...",
        kind=Kind.WORK,
        of=lambda round: int(np.max(round.solves.epochs)),
        total="longest solves",
        chart=6,
    )
    monkeypatch.setitem(COLUMNS, most.name, most)
    run = simulate()
    expected = [0, *run.epochs.max(axis=1)]
    np.testing.assert_array_equal(run.history["epochs_most"], expected)
    assert "epochs_most" not in run.history.metrics
    assert fa.plots.plot_column(run, "epochs_most").get_ylabel() == "epochs, most of a client"
    assert dict(key_figures(run).rows)["longest solves"] == f"{sum(expected)}"
    table = fa.Comparison({"one": {0: run}}, {}, "one").to_target("loss", run.history["loss"][-1])
    assert "longest solves" in table.header
    assert '"title":"Epochs, most of a client"' in report.page("title", {"a": [run]}, table=key_figures(run))


def test_no_other_table_of_columns():
    """Three of their names in one literal are a table, whose facts would have to follow this one's."""
    tables = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", ())
            names = [part.value for part in parts if isinstance(part, ast.Constant) and part.value in COLUMNS]
            if len(names) > 2:
                tables.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert tables == []


def test_means_of_a_round_without_work_are_unknown():
    away = fa.Solves(*[np.zeros(2, int)] * 11, stop_code=np.full(2, fa.StopReason.DROPPED.code))
    info = type("Info", (), {"solves": away, "rows": 0})
    nothing = FinishedRound(
        1, info, 10, 10, executed_samples=0, devices=1, seconds=1.0, simulated_seconds=0.0, penalties_at_bound=0
    )
    assert np.isnan(nothing.epochs_mean()) and np.isnan(nothing.lane_efficiency())
    assert nothing.communicated_floats() == 0
