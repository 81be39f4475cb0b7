"""Pictures: what is drawn equals what NumPy makes of the runs, and nothing covers anything."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import NamedTuple

import matplotlib
import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.show import plots
from fedjax_admm.show.plots import figures

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROUNDS, CLIENTS, COHORT = 12, 10, 4
ALGORITHMS = ("FedAvg", "FedADMM", "FedADMM-In", "FedADMM-InSa")
PENALTIES = (0.1, 1, 2, 5, 10)


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


class Made(NamedTuple):
    """A run made up by hand, and every client's numbers that it was made from."""

    run: fa.RunRecord
    penalties: np.ndarray  # [rounds + 1, clients]
    epochs: np.ndarray  # [rounds, clients], NaN where not selected


def make(seed=0, *, penalty=0.1, metric=True, every=1, rounds=ROUNDS):
    rng = np.random.default_rng(seed)
    cohorts = np.stack([rng.choice(CLIENTS, COHORT, replace=False) for _ in range(rounds)])
    penalties = np.full((rounds + 1, CLIENTS), np.nan if penalty is None else penalty)
    epochs = np.full((rounds, CLIENTS), np.nan)
    for k, cohort in enumerate(cohorts):
        epochs[k, cohort] = rng.integers(1, 21, COHORT)
        penalties[k + 1 :, cohort] *= rng.choice([1, 2], COHORT)
    index = np.arange(rounds)[:, None], cohorts
    run = fa.RunRecord(
        history=fa.History(history_rows(rng, penalties, epochs, metric, every)),
        cohorts=cohorts,
        solves=make_solves(epochs[index], penalties[:-1][index], penalties[1:][index]),
        num_clients=CLIENTS,
    )
    return Made(run, penalties, epochs)


def history_rows(rng, penalties, epochs, metric, every):
    rows = []
    for k in range(len(epochs) + 1):
        measured = 1.0 if k % every == 0 else np.nan
        loss = (1 + 50 * 0.5**k) * rng.uniform(0.9, 1.1)
        rows.append(
            {"round": k, "loss": measured * loss, "excess_loss": measured * (loss - 0.5)}
            | ({"accuracy": measured * rng.uniform()} if metric else {})
            | {"epochs_mean": np.nanmean(epochs[k - 1]) if k else 0.0}
            | {"gradient_samples": int(rng.integers(1, 100)) * (k > 0)}
            | {"communicated_floats": int(rng.integers(1, 100)) * (k > 0), "penalty_mean": penalties[k].mean()}
        )
    return rows


def make_solves(epochs, penalty, new_penalty):
    fields = dict.fromkeys(fa.Solves.__dataclass_fields__, np.full(epochs.shape, np.nan))
    counts = {"epochs": epochs.astype(np.int32), "max_epochs": np.full(epochs.shape, 20, np.int32)}
    return fa.Solves(**fields | counts | {"penalty": penalty, "new_penalty": new_penalty})


def paper_runs(**options):
    runs = {
        (name, p): make(i, penalty=p, **options).run
        for i, (name, p) in enumerate(itertools.product(ALGORITHMS[1:], PENALTIES))
    }
    return runs | {("FedAvg", None): make(99, penalty=None, **options).run}


def band(axes, index=0):
    """x and the band's lower and upper edge at each, from the polygon that was drawn."""
    points = axes.collections[index].get_paths()[0].vertices
    x = np.unique(points[:, 0])
    edges = [(points[points[:, 0] == at, 1].min(), points[points[:, 0] == at, 1].max()) for at in x]
    return x, *np.transpose(edges)


def labels(axes):
    return [line.get_label() for line in axes.lines]


def legend_texts(legend):
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(("against", "column"), [("gradients", "gradient_samples"), ("floats", "communicated_floats")])
def test_against_what_was_spent_so_far(against, column):
    run = make(every=3).run
    for axes, name in [
        (plots.plot_loss(run, against=against), "loss"),
        (plots.plot_metric(run, against=against), "accuracy"),
        (plots.plot_loss(run, column="excess_loss", against=against), "excess_loss"),
    ]:
        (line,) = axes.lines
        np.testing.assert_array_equal(line.get_xdata(), np.cumsum(run.history[column])[::3])
        np.testing.assert_array_equal(line.get_ydata(), run.history[name][::3])  # the evaluated rounds alone
        assert "so far" in axes.get_xlabel() and axes.get_legend() is None
    spent = np.cumsum(run.history[column])
    np.testing.assert_array_equal(plots.plot_epochs(run, against=against).lines[0].get_xdata(), spent[1:])
    np.testing.assert_array_equal(plots.plot_penalty(run, against=against).lines[0].get_xdata(), spent)


def test_seeds_are_a_mean_in_a_band():
    seeds = [make(seed, every=2).run for seed in range(3)]
    axes = plots.plot_loss({"one": seeds[0], "three": seeds}, against="gradients")
    assert labels(axes) == ["one", "three"] == legend_texts(axes.get_legend()) and len(axes.collections) == 1
    losses = np.stack([run.history["loss"][::2] for run in seeds])
    gradients = np.stack([np.cumsum(run.history["gradient_samples"])[::2] for run in seeds])
    np.testing.assert_allclose(axes.lines[1].get_xdata(), gradients.mean(axis=0))
    np.testing.assert_allclose(axes.lines[1].get_ydata(), losses.mean(axis=0))
    x, low, high = band(axes)
    np.testing.assert_allclose(x, gradients.mean(axis=0))
    np.testing.assert_allclose((low + high) / 2, losses.mean(axis=0))
    np.testing.assert_allclose((high - low) / 2, losses.std(axis=0, ddof=1))
    assert "s.d. of seeds" in axes.get_ylabel()


def test_seeds_are_compared_where_all_were_measured():
    axes = plots.plot_loss([make(0, every=2).run, make(1, every=3).run])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [0, 6, 12])


def test_penalty_of_all_clients():
    made = make()
    axes = plots.plot_penalty(made.run)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), made.penalties.mean(axis=1))
    x, low, high = band(axes)
    np.testing.assert_array_equal(x, np.arange(ROUNDS + 1))
    np.testing.assert_allclose(low, np.percentile(made.penalties, 10, axis=1))
    np.testing.assert_allclose(high, np.percentile(made.penalties, 90, axis=1))
    assert "percentile" in axes.get_ylabel()
    others = [make(seed) for seed in range(3)]
    pooled = np.concatenate([one.penalties for one in others], axis=1)
    axes = plots.plot_penalty([one.run for one in others])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), pooled.mean(axis=1))
    np.testing.assert_allclose(band(axes)[2], np.percentile(pooled, 90, axis=1))


def test_runs_without_a_penalty_keep_their_style_for_the_other_panels():
    runs = {"FedAvg": make(penalty=None).run, "InSa": make(1).run}
    assert labels(plots.plot_penalty(runs)) == ["InSa"]
    by_panel = [{line.get_label(): line.get_color() for line in axes.lines} for axes in plots.overview(runs).axes]
    assert {panel["InSa"] for panel in by_panel} == {by_panel[0]["InSa"]} != {by_panel[0]["FedAvg"]}
    with pytest.raises(ValueError, match="runs must have values of 'penalty.* got none"):
        plots.plot_penalty({"FedAvg": runs["FedAvg"]})
    assert len(plt.get_fignums()) == 2  # an error leaves no empty figure


def test_epochs_of_the_active_clients():
    made = make()
    (line,) = plots.plot_epochs(made.run).lines
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, ROUNDS + 1))  # nobody trained in round 0
    np.testing.assert_allclose(line.get_ydata(), np.nanmean(made.epochs, axis=1))


def test_heat_map_of_epochs():
    made = make()
    axes = plots.heat_map(made.run)
    (image,) = axes.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), made.epochs.T)
    # A client's row and a round's column are where their numbers are on the axes.
    left, right, bottom, top = image.get_extent()
    assert ((right - left) / ROUNDS, left + 0.5, (top - bottom) / CLIENTS, bottom + 0.5) == (1, 1, 1, 0)
    assert image.origin == "lower" and image.get_clim() == (0, 20)


def test_the_scale_follows_the_values():
    run = make().run
    assert run.history["loss"].max() > 10 * run.history["loss"].min()
    assert plots.plot_loss(run).get_yscale() == "log"
    assert plots.plot_loss(run, scale="linear").get_yscale() == "linear"
    tail = fa.RunRecord(fa.History([{"round": k, "loss": 2.0 - k} for k in range(2)]), run.cohorts, run.solves, CLIENTS)
    assert plots.plot_loss(tail).get_yscale() == "linear"
    assert plots.plot_loss({"tail": tail, "run": run}).get_yscale() == "log"
    assert plots.plot_metric(run).get_yscale() == "linear"  # however much it grows


def test_a_band_below_zero_on_a_logarithmic_axis():
    def of(values):
        rows = [{"round": k, "loss": value} for k, value in enumerate(values)]
        return fa.RunRecord(fa.History(rows), run.cohorts, run.solves, CLIENTS)

    run = make().run
    axes = plots.plot_loss([of([50.0, 1.0, 0.01]), of([60.0, 2.0, 1.0])])
    axes.figure.canvas.draw()
    assert axes.get_yscale() == "log" and 0 < axes.get_ylim()[0] < 0.505


def test_result_plot_draws_beside_what_is_there():
    axes = make().run.plot("loss", label="first")
    assert make(1).run.plot("loss", axes=axes, label="second") is axes
    assert labels(axes) == ["first", "second"] == legend_texts(axes.get_legend())
    first, second = axes.lines
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()
    assert make().run.plot("gradient_samples").get_ylabel() == "per-example gradients per round"


def test_result_plot_counts_what_it_is_asked_to():
    run = make().run
    axes = run.plot("loss", against="gradients", scale="log")
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), np.cumsum(run.history["gradient_samples"]))
    assert axes.get_yscale() == "log"


def test_one_evaluated_round_can_be_seen():
    (line,) = plots.plot_epochs(make(rounds=1).run).lines
    assert line.get_xdata().size == 1 and line.get_marker() == "o"


def test_styles_differ_in_colour_and_in_grey():
    styles = [figures.style(index) for index in range(49)]
    assert len({(one["color"], one["linestyle"]) for one in styles}) == 49
    assert len({one["color"] for one in styles[:7]}) == len({one["linestyle"] for one in styles[:7]}) == 7
    light = [np.dot(matplotlib.colors.to_rgb(color), [0.2126, 0.7152, 0.0722]) for color in figures.COLORS]
    assert max(light) < 0.75  # none vanishes on white


@pytest.mark.parametrize(
    ("options", "penalty", "titles"),
    [
        ({"metric": True}, 0.1, ["Loss", "Accuracy", "Penalty", "Local epochs"]),
        ({"metric": False}, 0.1, ["Loss", "Penalty", "Local epochs"]),
        ({"metric": False}, None, ["Loss", "Local epochs"]),
    ],
)
def test_overview_shows_what_there_is(options, penalty, titles):
    runs = {
        "a": make(0, penalty=penalty, **options).run,
        "b": [make(s, penalty=penalty, **options).run for s in (1, 2)],
    }
    figure = plots.overview(runs, against="floats")
    assert [axes.get_title() for axes in figure.axes] == titles
    assert all(labels(axes) == ["a", "b"] for axes in figure.axes)
    assert legend_texts(figure.legends[0]) == ["a", "b"]
    spent = np.cumsum(runs["a"].history["communicated_floats"])
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), spent)
    assert not plots.overview(runs["a"]).legends  # one run needs no name


PAPER = {  # number -> titles, lines in each panel
    2: (["(a) Training loss", "(b) Average penalty", "(c) Average local epochs"], [5, 4, 5]),
    3: (["(a) Training loss", "(b) Test accuracy", "(c) Average penalty", "(d) Average local epochs"], [5, 5, 4, 5]),
    4: (["(a) Training loss", "(b) Test accuracy", "(c) Average penalty", "(d) Average local epochs"], [5, 5, 4, 5]),
    5: (
        ["(a) FedADMM: loss", "(b) FedADMM: accuracy", "(c) FedADMM: penalty",
         "(d) FedADMM-InSa: loss", "(e) FedADMM-InSa: accuracy", "(f) FedADMM-InSa: penalty"],
        [5] * 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", PAPER)
def test_figures_of_the_paper(number):
    titles, lines = PAPER[number]
    figure = plots.paper_figure(number, paper_runs())
    assert [axes.get_title() for axes in figure.axes] == titles
    assert [len(axes.lines) for axes in figure.axes] == lines
    for axes in figure.axes:  # no two lines of a panel look alike in grey
        assert len({str(line._unscaled_dash_pattern) for line in axes.lines}) == len(axes.lines)


def test_which_runs_a_figure_shows():
    runs = paper_runs()
    loss, _, penalty, epochs = plots.paper_figure(3, runs).axes
    ours = [("FedADMM", 5), ("FedADMM", 10), ("FedADMM-InSa", 5), ("FedADMM-InSa", 10)]
    names = [f"{name}, penalty {p}" for name, p in ours]
    assert labels(loss) == labels(epochs) == ["FedAvg", *names] and labels(penalty) == names
    for key, line in zip(ours, penalty.lines, strict=True):
        np.testing.assert_allclose(line.get_ydata(), runs[key].client_penalties().mean(axis=1))
    np.testing.assert_array_equal(loss.lines[0].get_ydata(), runs["FedAvg", None].history["loss"])
    top, *_, bottom = plots.paper_figure(5, runs).axes
    for p, line in zip(PENALTIES, top.lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), runs["FedADMM", p].history["loss"])
    for p, line in zip(PENALTIES, bottom.lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), runs["FedADMM-InSa", p].history["penalty_mean"])


def test_figure_1_has_a_column_for_each_example():
    linear, mnist = paper_runs(metric=False), paper_runs()
    figure = plots.paper_figure(1, {"Linear regression": linear, "MNIST with CNN": mnist})
    titles = ["(a) Linear regression", "(b) MNIST with CNN", "(c) Linear regression", "(d) MNIST with CNN"]
    assert [axes.get_title() for axes in figure.axes] == titles
    named = ["FedAvg", "FedADMM, penalty 1", "FedADMM-In, penalty 1"]
    assert all(labels(axes) == named for axes in figure.axes) and legend_texts(figure.legends[0]) == named
    for axes, runs, column in zip(
        figure.axes, [linear, mnist] * 2, ["loss", "accuracy", "epochs_mean", "epochs_mean"], strict=True
    ):
        expected = runs["FedADMM-In", 1].history[column]
        np.testing.assert_array_equal(axes.lines[2].get_ydata(), expected[1:] if column == "epochs_mean" else expected)
    assert len(plots.paper_figure(1, linear).axes) == 2  # one example without a title


def test_runs_of_a_figure_by_any_spelling_and_penalties_by_choice():
    runs = {("fedavg", 3.0): make(0).run, ("fedadmm", np.float32(0.1)): make(1).run, ("fedadmm-insa", 0.1): make(2).run}
    figure = plots.paper_figure(2, runs, penalties=0.1)
    assert labels(figure.axes[0]) == ["FedAvg", "FedADMM, penalty 0.1", "FedADMM-InSa, penalty 0.1"]


@pytest.mark.parametrize("number", [1, *PAPER])
def test_nothing_overlaps(number):
    """Names, titles, ticks and legends have room of their own, inside the figure."""
    seeds = {key: [run, make(7, penalty=key[1]).run] for key, run in paper_runs().items()}
    check_layout(plots.paper_figure(number, {"Example A": seeds, "Example B": seeds} if number == 1 else seeds))


@pytest.mark.parametrize("against", ["rounds", "gradients", "floats"])
def test_nothing_overlaps_in_the_other_pictures(against):
    runs = {f"run number {i}": [make(i).run, make(i + 50).run] for i in range(6)}
    check_layout(plots.overview(runs, against=against))
    for draw in (plots.plot_loss, plots.plot_metric, plots.plot_penalty, plots.plot_epochs):
        check_layout(draw(runs, against=against).figure)
    check_layout(plots.heat_map(make().run).figure)


def check_layout(figure):
    figure.canvas.draw()
    parts = [(legend, "figure's legend") for legend in figure.legends]
    for axes in figure.axes:
        texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *shown_ticks(axes.xaxis), *shown_ticks(axes.yaxis)]
        parts += [(text, text.get_text()) for text in texts if text.get_text()]
        parts += [(axes.patch, "axes")] + [(legend, "legend") for legend in [axes.get_legend()] if legend]
    boxes = [(part.get_window_extent(), name) for part, name in parts]
    for box, name in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, name
    for (first, one), (second, other) in itertools.combinations(boxes, 2):
        assert not first.padded(-0.5).overlaps(second.padded(-0.5)), (one, other)


def shown_ticks(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]


def test_a_user_s_settings_and_axes_are_left_alone():
    before = dict(matplotlib.rcParams)
    mine = plt.subplots()[1]
    mine.set_xscale("log")
    assert plots.plot_loss({"a": make().run}, axes=mine) is mine
    assert mine.get_xscale() == "log" and mine.spines["top"].get_visible()
    plots.overview(make().run)
    plots.heat_map(make().run)
    plots.paper_figure(3, paper_runs())
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_asked_for_when_it_is_needed(monkeypatch):
    code = "import sys, fedjax_admm; print('matplotlib' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib: pip install 'fedjax_admm\[plots\]'"):
        make().run.plot()


BAD = {
    "runs must be a run .* got 3": lambda run: plots.plot_loss(3),
    r"runs must be a run .* got \[\] for 'a'": lambda run: plots.plot_loss({"a": []}),
    "runs must be a run .* got None for 'b'": lambda run: plots.plot_penalty({"a": run, "b": None}),
    "runs must have one run at least": lambda run: plots.overview({}),
    r"seeds of equal length, got \[3, 12\] rounds for 'a'": lambda run: plots.plot_loss({"a": [run, make(rounds=3).run]}),
    "column must be 'loss' or 'excess_loss', got 'accuracy'": lambda run: plots.plot_loss(run, column="accuracy"),
    "column must be .* got 'speed'": lambda run: run.plot("speed"),
    "name must be 'accuracy', got 'recall'": lambda run: plots.plot_metric(run, "recall"),
    "runs must have a metric": lambda run: plots.plot_metric(make(metric=False).run),
    "against='time' needs the column simulated_seconds": lambda run: plots.plot_epochs(run, against="time"),
    "against must be .* got 'seconds'": lambda run: plots.overview(run, against="seconds"),
    "scale must be .* got 'sqrt'": lambda run: plots.plot_loss(run, scale="sqrt"),
    "axes must be None or matplotlib's axes": lambda run: plots.plot_loss(run, axes=plt.subplots(2)[1]),
    "run must be one run": lambda run: plots.heat_map({"a": run}),
    "number must be 1, 2, 3, 4 or 5, got 6": lambda run: plots.paper_figure(6, {}),
    "runs must map .* got 3": lambda run: plots.paper_figure(2, 3),
    r"runs must have keys \(algorithm, penalty\), got 'FedADMM'": lambda run: plots.paper_figure(2, {"FedADMM": run}),
    r"runs must have \('FedAvg', None\), .*\('FedADMM-InSa', 1.0\) .* got \('FedADMM', 1\)": (
        lambda run: plots.paper_figure(2, {("FedADMM", 1): run})
    ),
    "penalties must have one entry": lambda run: plots.paper_figure(2, {}, penalties=[]),
    "penalties must be above 0, got -1": lambda run: plots.paper_figure(2, {}, penalties=[-1]),
    "metric in common": lambda run: plots.paper_figure(3, paper_runs(metric=False)),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=message) as error:
        BAD[message](make().run)
    assert "\n" not in str(error.value)
