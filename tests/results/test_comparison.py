"""Comparisons: numbers against plain NumPy on the runs themselves, cells that are done, cells that diverge."""

from __future__ import annotations

import contextlib
import csv
import io
import json

import jax
import numpy as np
import pytest
from federations import least_squares

import fedjax_admm as fa
from fedjax_admm.results.comparison import key_figures
from fedjax_admm.results.tables import Table

LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)
ALGORITHMS = {"FedAvg": fa.fedavg(LOCAL), "InSa": fa.fedadmm_insa(LOCAL, penalty=0.1)}
WILD = fa.fedavg(fa.LocalSolver(learning_rate=300.0, batch_size=4, max_epochs=3))
SEEDS = [0, 3, 7]


def problem():
    return least_squares([6, 11, 3, 8])[0]


def compared(algorithms=ALGORITHMS, **options):
    return fa.compare(problem(), algorithms, **dict(rounds=14, participation=2, seeds=SEEDS, progress=False) | options)


def test_statistics_are_those_of_the_runs():
    comparison = compared()
    row = {row["algorithm"]: row for row in comparison.statistics()}
    runs = {
        label: [fa.simulate(problem(), a, 14, participation=2, seed=s, progress=False) for s in SEEDS]
        for label, a in ALGORITHMS.items()
    }
    last = {label: np.array([run.history["loss"][-10:].mean() for run in runs[label]]) for label in runs}
    for label, found in runs.items():
        final = [run.history["loss"][-1] for run in found]
        assert row[label]["loss_final"] == pytest.approx(np.mean(final), rel=1e-12)
        assert row[label]["loss_final_std"] == pytest.approx(np.std(final, ddof=1), rel=1e-12)
        assert row[label]["loss_best"] == pytest.approx(np.mean([run.history["loss"].min() for run in found]))
        assert row[label]["loss_last"] == pytest.approx(last[label].mean())
        assert row[label]["epoch_reduction"] == pytest.approx(
            np.mean([1 - run.epochs.sum() / (3 * run.epochs.size) for run in found])
        )
        np.testing.assert_array_equal(found[0].cohorts, runs["FedAvg"][0].cohorts)
    paired = last["InSa"] - last["FedAvg"]
    assert row["InSa"]["loss_last_difference"] == pytest.approx(paired.mean())
    assert row["InSa"]["loss_last_difference_std"] == pytest.approx(paired.std(ddof=1))
    ratio = [
        a.history["gradient_samples"].sum() / b.history["gradient_samples"].sum()
        for a, b in zip(runs["InSa"], runs["FedAvg"], strict=True)
    ]
    assert row["InSa"]["gradients_ratio"] == pytest.approx(np.mean(ratio))
    assert row["FedAvg"]["floats_ratio"] == 1.0


def test_the_work_to_a_target_is_the_sum_up_to_the_first_round_at_it():
    comparison = compared()
    target = comparison.runs["FedAvg"][0].history["loss"][5]  # of the first seed; other seeds may reach it or not
    table = comparison.to_target("loss", target)
    assert table.header == ("algorithm", "reached", "rounds", "epochs", "gradients", "of criterion", "floats")
    for (label, reached, *cells), runs in zip(table.rows, comparison.runs.values(), strict=True):
        work = []
        for run in runs.values():
            for k, loss in enumerate(run.history["loss"]):
                if loss <= target:
                    columns = ("gradient_samples", "criterion_samples", "communicated_floats")
                    sums = [sum(run.history[name][: k + 1]) for name in columns]
                    work.append([k, run.epochs[:k].sum(), *sums])
                    break
        assert reached == f"{len(work)} of 3" and work
        shown = [f"{mean:,.0f}" if mean >= 1000 else f"{mean:.4g}" for mean in np.mean(work, axis=0)]
        assert cells == shown, label
    assert {row[1:] for row in comparison.to_target("loss", -1).rows} == {("0 of 3", "-", "-", "-", "-", "-")}
    with pytest.raises(ValueError, match="column must be .*loss.*got 'accuracy'"):
        comparison.to_target("accuracy", 0.9)


def test_last_and_best_skip_rounds_that_were_not_evaluated():
    (row,) = compared({"FedAvg": ALGORITHMS["FedAvg"]}, seeds=[0], evaluate_every=5).statistics()
    loss = fa.simulate(problem(), ALGORITHMS["FedAvg"], 14, participation=2, progress=False).history["loss"]
    assert row["loss_last"] == pytest.approx(loss[[5, 10, 14]].mean(), rel=1e-12)
    assert np.isnan(row["loss_final_std"])


def test_tables_say_what_they_are():
    """Every column is explained once, and the mean at the end is called after as many evaluations as there were."""
    for rounds, every, last in ((14, 1, 10), (6, 1, 6), (9, 4, 3)):
        comparison = compared(rounds=rounds, seeds=[0], evaluate_every=every)
        table, legend = comparison.table(), comparison.legend()
        assert table.header[2:6] == ("loss, final", f"loss, last {last}", "loss, best", "loss, difference")
        assert tuple(row[0] for row in legend.rows) == table.header and all(row[1] for row in legend.rows)
        run = comparison.runs["FedAvg"][0]
        losses = run.history["loss"][1:]
        expected = f"{losses[np.isfinite(losses)][-last:].mean():.6g}"
        assert (f"loss, mean of the last {last}", expected) in key_figures(run).rows
    comparison = compared(rounds=2, seeds=[0], targets=[("loss", 1.0)])
    told = {row[0] for row in comparison.legend().rows}
    assert told >= {name for table in comparison.target_tables().values() for name in table.header} - {
        "rounds",
        "epochs",
    }


def test_the_tables_are_in_the_directory(tmp_path):
    """As the command line writes them: of all that is there, not of the last call alone."""
    compared({"FedAvg": ALGORITHMS["FedAvg"]}, run_dir=tmp_path)
    last = compared({"InSa": ALGORITHMS["InSa"]}, run_dir=tmp_path)
    whole = fa.read_comparison(tmp_path)
    assert set(whole.runs) == {"FedAvg", "InSa"} and set(last.runs) == {"InSa"}
    for name, text in (("txt", whole.text()), ("csv", whole.csv()), ("md", whole.markdown()), ("tex", whole.latex())):
        assert (tmp_path / f"table.{name}").read_text() == text.rstrip("\n") + "\n"


def test_a_run_that_diverges_is_noted_and_the_others_go_on(tmp_path):
    comparison = compared(ALGORITHMS | {"wild": WILD}, run_dir=tmp_path)
    assert set(comparison.missing["wild"]) == set(SEEDS) and len(comparison.runs["InSa"]) == 3
    assert "0 (3 missing)" in comparison.table().text() and "wild, seed 3: round" in repr(comparison)
    assert set(comparison.by_label()) == {"FedAvg", "InSa"}
    before = (tmp_path / "wild" / "seed-0" / "status.json").stat().st_mtime_ns
    again = compared(ALGORITHMS | {"wild": WILD}, run_dir=tmp_path)  # known, not tried again
    assert repr(again) == repr(comparison)
    assert (tmp_path / "wild" / "seed-0" / "status.json").stat().st_mtime_ns == before


def test_an_interrupted_comparison_goes_on(tmp_path):
    seen = []

    def stop(row):
        seen.append(row)
        if len(seen) == 40:
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        compared(run_dir=tmp_path, on_round=stop, evaluate_every=1)
    part = fa.read_comparison(tmp_path)
    assert sum(map(len, part.runs.values())) == 2 and part.missing["FedAvg"][7] == "not begun"
    whole = compared(run_dir=tmp_path)
    assert repr(whole) == repr(compared()) == repr(fa.read_comparison(tmp_path))


def test_a_cell_whose_process_is_gone_is_called_killed(tmp_path):
    compared(run_dir=tmp_path, seeds=[0], rounds=2)
    status = tmp_path / "InSa" / "seed-0" / "status.json"
    status.write_text(status.read_text().replace("finished", "running"))
    assert fa.read_comparison(tmp_path).notes() == ["InSa, seed 0: killed"]


def test_a_baseline_that_is_given_later_is_kept(tmp_path):
    for baseline, kept in ((None, "FedAvg"), ("InSa", "InSa"), (None, "InSa")):
        comparison = compared(run_dir=tmp_path, seeds=[0], rounds=2, baseline=baseline)
        assert comparison.baseline == fa.read_comparison(tmp_path).baseline == kept
    alone = compared({"FedAvg": ALGORITHMS["FedAvg"]}, run_dir=tmp_path, seeds=[0], rounds=2)
    assert alone.baseline == "FedAvg"  # of what this call has


def test_a_comparison_goes_on_with_other_versions(tmp_path):
    """They may write the same computation in another way; with the same versions it is another computation."""
    compared(run_dir=tmp_path, seeds=[0], rounds=2)
    plan = json.loads((tmp_path / "comparison.json").read_text())
    plan["problem"]["computes"]["loss"] = plan["cells"]["InSa"]["algorithm"]["optimizer_step"] = "written otherwise"
    (tmp_path / "comparison.json").write_text(json.dumps(plan))
    with pytest.raises(ValueError, match="computes.loss: .written otherwise. there"):
        compared(run_dir=tmp_path, seeds=[0, 1], rounds=2)
    (tmp_path / "comparison.json").write_text(json.dumps(plan | {"versions": plan["versions"] | {"jax": "0.0.1"}}))
    plan["cells"]["InSa"]["versions"] = plan["versions"] | {"jax": "0.0.1"}
    (tmp_path / "comparison.json").write_text(json.dumps(plan | {"versions": plan["cells"]["InSa"]["versions"]}))
    compared({"FedAvg": ALGORITHMS["FedAvg"]}, run_dir=tmp_path, seeds=[0], rounds=2)  # now the plan is of these
    assert len(compared(run_dir=tmp_path, seeds=[0, 1], rounds=2).runs["InSa"]) == 2


def test_numbers_may_be_numpys(tmp_path):
    execution = fa.Execution(lanes=np.int64(2), mesh=np.int32(1))
    compared(run_dir=tmp_path, seeds=np.arange(1), rounds=np.int64(2), execution=execution)
    assert fa.read_comparison(tmp_path).notes() == []


def test_labels_that_would_share_a_folder_do_not(tmp_path):
    comparison = compared({"a b": ALGORITHMS["FedAvg"], "a/b": ALGORITHMS["InSa"]}, seeds=[0], run_dir=tmp_path)
    assert len(comparison.runs["a b"]) == len(comparison.runs["a/b"]) == 1
    assert len(list(tmp_path.glob("a-b*"))) == 2


def test_a_comparison_is_of_one_problem_and_one_setting(tmp_path):
    compared(run_dir=tmp_path, seeds=[0])
    before = (tmp_path / "comparison.json").read_bytes()
    with pytest.raises(ValueError, match="rounds: 14 there, 5 now"):
        compared(run_dir=tmp_path, rounds=5)
    with pytest.raises(ValueError, match="penalty: 0.1 there, 9.0 now"):
        compared({"InSa": fa.fedadmm_insa(LOCAL, penalty=9.0)}, run_dir=tmp_path)
    assert (tmp_path / "comparison.json").read_bytes() == before


def assert_same_runs(one, other):
    """To the bit: every solve, and histories without seconds."""
    for label in ALGORITHMS:
        assert one.runs[label].keys() == other.runs[label].keys()
        for seed, run in one.runs[label].items():
            twin = other.runs[label][seed]
            jax.tree.map(np.testing.assert_array_equal, (run.cohorts, run.solves), (twin.cohorts, twin.solves))
            for name in run.history:
                if "seconds" not in name:
                    np.testing.assert_array_equal(run.history[name], twin.history[name], err_msg=name)


@pytest.mark.parametrize("done", ["finished", "cut off"])
def test_a_comparison_with_more_rounds_is_one_that_had_them_from_the_start(tmp_path, done):
    seen = []

    def stop(row):
        seen.append(row)
        if done == "cut off" and len(seen) == 40:  # the second seed's first run
            raise RuntimeError("cut off")

    with pytest.raises(RuntimeError) if done == "cut off" else contextlib.nullcontext():
        compared(run_dir=tmp_path / "longer", on_round=stop)
    longer, once = (compared(run_dir=tmp_path / name, rounds=21) for name in ("longer", "once"))
    assert_same_runs(longer, once)
    assert_same_runs(fa.read_comparison(tmp_path / "longer"), once)
    for table in ("table.txt", "table.csv", "table.md", "table.tex"):
        assert (tmp_path / "longer" / table).read_bytes() == (tmp_path / "once" / table).read_bytes()
    with pytest.raises(ValueError, match="rounds: 21 there, 14 now"):
        compared(run_dir=tmp_path / "longer")


def test_a_comparison_whose_lengthening_was_cut_off_is_shown_and_goes_on(tmp_path):
    compared(run_dir=tmp_path, seeds=[0])

    def stop(row):
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        compared(run_dir=tmp_path, seeds=[0], rounds=21, on_round=stop)
    part = fa.read_comparison(tmp_path)
    assert not part.by_label() and "InSa, seed 0: finished with 14 rounds, the comparison has 21" in part.notes()
    assert_same_runs(compared(run_dir=tmp_path, seeds=[0], rounds=21), compared(seeds=[0], rounds=21))


def test_a_comparison_is_made_longer_as_a_whole_and_with_nothing_else(tmp_path):
    uneven = {"evaluate_every": 4}  # 14 is evaluated only because it is the last
    compared(run_dir=tmp_path / "even", seeds=[0, 1], evaluate_every=7)
    compared(run_dir=tmp_path / "uneven", seeds=[0], **uneven)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    more = {"run_dir": tmp_path / "even", "rounds": 21, "evaluate_every": 7}
    for algorithms, options, message in (
        (ALGORITHMS, more | {"seeds": [0]}, "as a whole, and these of it were not given: seed 1: give them too"),
        ({"InSa": ALGORITHMS["InSa"]}, more | {"seeds": [0, 1]}, "not given: algorithm 'FedAvg': give them too"),
        (ALGORITHMS, more | {"seeds": [0, 1], "participation": 3}, r"\(participation: 2 there, 3 now\)"),
        (ALGORITHMS | {"InSa": ALGORITHMS["FedAvg"]}, more | {"seeds": [0, 1]}, "algorithm InSa"),
        (ALGORITHMS, uneven | {"run_dir": tmp_path / "uneven", "rounds": 20, "seeds": [0]}, "because it was the last"),
    ):
        with pytest.raises(ValueError, match=message) as refused:
            compared(algorithms, **options)
        assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
    compared(**more | {"seeds": [0, 1, 2]})  # a new seed joins


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"rounds": 0}, ValueError, "rounds must be at least 1"),
        ({"evaluate_evry": 2}, TypeError, "no argument 'evaluate_evry'"),
        ({"seed": 3}, TypeError, "no argument 'seed'"),
        ({"seeds": 3}, ValueError, "seeds must be a list"),
        ({"algorithms": {"a": fa.fedprox(LOCAL, penalty=[1.0, 2.0])}}, ValueError, "has 2 entries for 4 clients"),
        ({"participation": 9}, ValueError, "participation"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path, options, error, named):
    with pytest.raises(error, match=named):
        compared(run_dir=tmp_path / "all", **options)
    assert not (tmp_path / "all").exists()


def test_bad_arguments():
    with pytest.raises(ValueError, match="algorithms must be label -> algorithm, at least one, got {}"):
        compared({})
    with pytest.raises(ValueError, match="baseline must be 'FedAvg' or 'InSa', got 'Insa': did you mean 'InSa'"):
        compared(baseline="Insa")
    with pytest.raises(ValueError, match="seeds must be different numbers"):
        compared(seeds=[1, 1])
    with pytest.raises(ValueError, match="has no comparison"):
        fa.read_comparison("nowhere")


def test_forms_of_a_table():
    table = Table(("algorithm", "a_b %"), (("x|y", "1.0 ± 0.1"),))
    assert table.markdown().splitlines()[2] == r"| x\|y | 1.0 ± 0.1 |"
    assert r"x|y & 1.0 $\pm$ 0.1 \\" in table.latex() and r"a\_b \%" in table.latex()
    assert list(csv.reader(io.StringIO(table.csv()))) == [["algorithm", "a_b %"], ["x|y", "1.0 ± 0.1"]]
    assert "<td>x|y</td>" in table._repr_html_()
    rows = list(csv.DictReader(io.StringIO(compared(seeds=[0]).csv())))
    assert float(rows[1]["loss_final"]) == compared(seeds=[0]).statistics()[1]["loss_final"]


def test_the_picture_has_a_line_for_every_algorithm():
    import matplotlib

    matplotlib.use("Agg")
    figure = compared(seeds=[0, 1]).plot(against="gradients")
    assert {text.get_text() for legend in figure.legends for text in legend.get_texts()} == set(ALGORITHMS)
