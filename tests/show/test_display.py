"""What runs, data and algorithms show in a notebook: the numbers are theirs, and text is escaped."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import jax
import numpy as np
import optax
import pytest
from federations import least_squares

import fedjax_admm as fa

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
PENALTIES = np.array([0.5, 1.0, 2.0, 4.0])


def markup(value):
    """The parsed HTML; it is written so that an XML parser takes it, which notices what was not escaped."""
    return ElementTree.fromstring(value._repr_html_())


def cells(value):
    """label -> value of the table."""
    return dict([cell.text or "" for cell in row] for row in markup(value).iter("tr") if row.find("td") is not None)


@pytest.fixture(scope="module")
def result():
    problem = least_squares([6, 11, 3, 8])[0]
    return fa.simulate(problem, fa.fedadmm_insa(LOCAL), 6, participation=2, progress=False)


def with_columns(run, **columns):
    """The run with other columns of its history, [7] each."""
    columns = dict(run.history) | columns
    return replace(run, history=fa.History([{name: values[k] for name, values in columns.items()} for k in range(7)]))


def curve(value):
    (line,) = markup(value).iter("polyline")
    return np.array([[float(number) for number in point.split(",")] for point in line.get("points").split()])


def caption(value):
    (text,) = markup(value).iter("text")
    return text.text


def test_a_run_shows_its_own_numbers(result):
    shown, history = cells(result), result.history
    assert shown["rounds"] == "6"
    assert float(shown["loss, final"]) == pytest.approx(history["loss"][-1], rel=1e-5)
    assert float(shown["loss, best"]) == pytest.approx(history["loss"].min(), rel=1e-5)
    assert int(shown["gradients"].replace(",", "")) == np.sum(result.solves.gradient_samples)
    assert int(shown["of the criterion"].replace(",", "")) == np.sum(result.solves.criterion_samples)
    assert float(shown["local epochs saved"].rstrip(" %")) == pytest.approx(100 * result.epoch_reduction, abs=0.05)
    mean = float(np.mean(result.state.penalties))
    assert float(shown["penalty, mean over clients"]) == pytest.approx(mean, rel=1e-3)


def test_a_run_shows_its_loss(result):
    points, loss = curve(result), result.history["loss"]
    assert len(points) == len(loss)
    drawn = loss if "logarithmic" not in caption(result) else np.log(loss)
    assert np.corrcoef(points[:, 1], drawn)[0, 1] == pytest.approx(-1, abs=1e-3)  # a page's ordinate points down
    assert f"{loss[0]:.4g} in round 0 to {loss[-1]:.4g} in round 6" in caption(result)


def test_a_loss_that_spans_decades_is_logarithmic(result):
    shown = with_columns(result, loss=10.0 ** -np.arange(7))
    assert "logarithmic" in caption(shown)
    np.testing.assert_allclose(np.diff(curve(shown)[:, 1], n=2), 0, atol=0.2)  # a straight line, to the digits written


def test_rounds_that_were_not_evaluated_are_left_out(result):
    nan = np.nan
    assert len(curve(with_columns(result, loss=np.array([2, nan, nan, nan, 1.5, nan, 1.0])))) == 3


def test_negative_losses_are_drawn_too(result):
    assert len(curve(with_columns(result, loss=-np.arange(7.0)))) == 7


def test_a_loss_that_stands_still_is_a_level_line(result):
    assert np.ptp(curve(with_columns(result, loss=np.ones(7)))[:, 1]) == 0


def test_the_loss_above_the_optimum_is_shown_where_it_is_known(result):
    assert caption(with_columns(result, excess_loss=result.history["loss"] - 1e-3)).startswith("excess loss")


def test_a_metric_may_be_called_anything(result):
    shown = with_columns(result, **{"<b>a & b": np.arange(7.0)})
    assert cells(shown)["<b>a & b, final"] == "6"


def test_a_run_that_has_just_begun_shows_so(result):
    history = fa.History([{name: values[0] for name, values in result.history.items()}])
    begun = fa.RunRecord(history, result.cohorts[:0], jax.tree.map(lambda leaf: leaf[:0], result.solves), 4)
    assert "no round done yet" in begun._repr_html_()


def test_data_shows_its_fields_and_sizes():
    fields = {"<x>": np.zeros((30, 2, 3), np.float32), "y": {"a&b": np.zeros(30, np.int32)}}
    data = fa.FederatedData.from_arrays(fields, [range(3), range(3, 20), range(20, 30), range(30)], allow_overlap=True)
    shown = cells(data)
    assert shown["clients"] == "4"
    assert shown["rows, of all clients"] == "60"
    assert shown["rows per client: least, median, most"] == "3, 13.5, 30"
    assert shown["rows that clients share"] == "yes"
    assert shown["field <x>"] == "float32 [30, 2, 3]"
    assert shown["field y.a&b"] == "int32 [30]"


def test_disjoint_data_says_nothing_of_sharing():
    assert "rows that clients share" not in cells(least_squares([6, 3])[0].data)


@pytest.mark.parametrize("name", fa.algorithms.__all__)
def test_every_algorithm_shows_its_numbers(name):
    make = getattr(fa, name)
    algorithm = make(LOCAL, **{"penalty": 0.25} if "penalty" in inspect.signature(make).parameters else {})
    shown = cells(algorithm)
    for path, leaf in jax.tree_util.tree_leaves_with_path(algorithm):
        assert float(shown[jax.tree_util.keystr(path).lstrip(".")]) == pytest.approx(float(leaf), rel=1e-5)
    inside = "algorithm." if hasattr(algorithm, "algorithm") else ""  # of an averaged method
    assert shown[f"{inside}local.optimizer"] == "sgd"
    assert shown[f"{inside}criterion"] == type(algorithm.criterion).__name__


def test_numbers_of_each_client_are_shown_as_a_range():
    shown = cells(fa.fedadmm_in(LOCAL, penalty=PENALTIES))
    assert shown["penalty"] == "0.5 to 4, one for each of 4 clients"
    schedule = np.tile([0.0, 0.5, 0.0, 0.25], (30, 1))
    assert cells(fa.Faults(dropout=schedule))["dropout"] == "0 to 0.5, one for each of 4 clients in each of 30 rounds"


def test_an_optimizer_without_a_name_is_escaped():
    local = fa.LocalSolver(learning_rate=0.05, optimizer=lambda rate: optax.sgd(rate))
    assert cells(fa.fedavg(local))["local.optimizer"].endswith("<lambda>")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("fedavg", "FedAvg"),
        ("fedprox", "FedProx"),
        ("fedadmm", "FedADMM"),
        ("fedadmm_in", "FedADMM-In"),
        ("fedadmm_insa", "FedADMM-InSa"),
        ("feddyn", "FedDyn"),
        ("scaffold", "Scaffold"),
    ],
)
def test_methods_of_one_class_are_told_apart(name, title):
    make = getattr(fa, name)
    algorithm = make(LOCAL, **{"penalty": 0.25} if "penalty" in inspect.signature(make).parameters else {})
    assert markup(algorithm).find("strong").text == title
    assert repr(algorithm).startswith(f"{title}(local=LocalSolver(")


def test_functions_are_shown_by_name():
    """Addresses differ from run to run, and say nothing."""
    momentum = functools.partial(optax.sgd, momentum=0.9)
    assert repr(LOCAL) == "LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3, optimizer=sgd, options=None)"
    assert repr(replace(LOCAL, optimizer=momentum)).endswith(
        "optimizer=functools.partial(sgd, momentum=0.9), options=None)"
    )
    assert "loss=squared_error" in repr(least_squares([3])[0])
    assert " at 0x" not in repr(least_squares([3])[0])


def test_displays_are_there_whatever_was_imported_first():
    """A value does not import what shows it: the package does, also in a process that has asked for nothing else."""
    code = "from fedjax_admm import LocalSolver; print(LocalSolver(0.25)._repr_html_())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("<div><strong>LocalSolver</strong>") and "<td>0.25</td>" in shown
