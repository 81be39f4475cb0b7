"""The report page: what is embedded is what was recorded, and a browser draws it without complaint."""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.core.vocabulary import Solves, StopReason
from fedjax_admm.results.comparison import Comparison, key_figures
from fedjax_admm.results.history import History, RunRecord
from fedjax_admm.results.tables import Table
from fedjax_admm.show import report
from fedjax_admm.show.report import heatmap

page = functools.partial(report.page, table=Table(("quantity", "value"), (("loss", "1.0"),)))
NASTY = '<b>&"</script><img src=x onerror=alert(1)>'
SEVEN_DIGITS = 1e-6
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def make_record(rounds=12, clients=6, cohort=2, *, seed=0, evaluate_every=1, penalty=0.1, **metrics) -> RunRecord:
    """A record with random values; `penalty` None is an algorithm that has none."""
    rng = np.random.default_rng(seed)
    size = (rounds, cohort)
    cohorts = np.argsort(rng.random((rounds, clients)), axis=1)[:, :cohort]
    penalties = np.full(size, np.nan if penalty is None else penalty)
    epochs = rng.integers(1, 21, size)
    solves = Solves(
        epochs=epochs,
        max_epochs=np.full(size, 20),
        gradient_samples=10 * epochs,
        criterion_samples=epochs,
        stop_code=np.where(epochs == 20, StopReason.MAXIMUM.code, StopReason.CRITERION.code).astype(np.int8),
        penalty=penalties,
        new_penalty=penalties,
        **dict.fromkeys(("reference_residual", "final_residual", "sigma", "consensus_gap", "movement"), np.ones(size)),
    )
    rows = []
    for k in range(rounds + 1):
        done = solves.epochs[k - 1] if k else np.zeros(cohort, int)
        evaluated = 1.0 if k % evaluate_every == 0 else np.nan
        measured = {"loss": 2.0 / (k + 1), "excess_loss": 1.0 / (k + 1), **metrics}
        rows.append(
            {
                "round": k, **{name: value * evaluated for name, value in measured.items()},
                "epochs_mean": done.mean(), "gradient_samples": 10 * done.sum(), "criterion_samples": done.sum(),
                "communicated_floats": 100 * cohort * (k > 0), "penalty_mean": np.nan if penalty is None else penalty,
                "lane_efficiency": 1.0, "seconds": 0.5, "eval_seconds": 0.0, "failed_clients": 0,
            }
        )  # fmt: skip
    return RunRecord(History(rows), cohorts, solves, clients)


class Document(HTMLParser):
    """Start tags with their attributes, and the text that directly follows them, by id or tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._key = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._key = dict(attrs).get("id") or tag

    def handle_endtag(self, tag):
        self._key = ""

    def handle_data(self, data):
        self.text[self._key] = self.text.get(self._key, "") + data

    @property
    def data(self) -> dict:
        def refuse(name):
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.text["data"], parse_constant=refuse)

    def find(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def pixels(url: str) -> np.ndarray:
    """The palette entries of an image that `heatmap.png` wrote."""
    content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(content):
        (length,) = struct.unpack_from(">I", content, at)
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length) == (zlib.crc32(kind + body),)
        chunks[kind], at = body, at + 12 + length
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    return np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)[:, 1:]


def test_text_is_escaped_everywhere():
    text = page(
        NASTY,
        {NASTY: [make_record(**{NASTY: 1.0})]},
        table=Table((NASTY, NASTY), ((NASTY, NASTY),)),
        settings={NASTY: {NASTY: [NASTY, {"deep": NASTY}]}},
        environment={"x": NASTY},
        notes=[NASTY],
    )
    document = Document(text)
    assert "<b>&" not in text and not [tag for tag in document.find("img") if tag["src"] == "x"]
    assert text.count("</script>") == len(document.find("script")) == 2
    assert document.data["series"][0]["label"] == NASTY
    assert document.text["title"] == NASTY and document.text["td"].startswith(NASTY)


def test_nothing_is_fetched():
    text = page("title", {"a": [make_record()]}, settings={"see": "https://example.org"})
    for tag, attributes in Document(text).tags:
        assert tag != "link"
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", text)


def test_embedded_numbers_are_the_history():
    record = make_record(evaluate_every=3, accuracy=0.5)
    (series,) = Document(page("title", {"a": [record]})).data["series"]
    history = record.history
    for name in ("gradient_samples", "communicated_floats"):
        assert series["x"][name] == np.cumsum(history[name]).tolist()
    assert series["x"]["round"] == history["round"].tolist()
    for name in ("loss", "excess_loss", "accuracy", "penalty_mean"):
        np.testing.assert_allclose(np.array(series["y"][name]["mean"], float), history[name], rtol=SEVEN_DIGITS)
    assert series["y"]["epochs_mean"]["mean"] == [None, *history["epochs_mean"][1:]]  # none were done in round 0


def test_seeds_become_a_mean_and_a_deviation():
    records = [make_record(seed=seed) for seed in range(3)]
    (series,) = Document(page("title", {"a": records})).data["series"]
    values = np.stack([record.history["epochs_mean"] for record in records])[:, 1:]
    curve = {key: np.array(value[1:], float) for key, value in series["y"]["epochs_mean"].items()}
    np.testing.assert_allclose(curve["mean"], values.mean(0), rtol=SEVEN_DIGITS)
    np.testing.assert_allclose((curve["high"] - curve["low"]) / 2, values.std(0, ddof=1), rtol=1e-4, atol=1e-5)
    samples = [np.cumsum(record.history["gradient_samples"]) for record in records]
    np.testing.assert_allclose(series["x"]["gradient_samples"], np.mean(samples, axis=0), rtol=SEVEN_DIGITS)


def test_penalty_band_is_the_spread_over_clients():
    record = make_record(rounds=40, clients=11, cohort=3)
    new = np.random.default_rng(1).random((40, 3))
    object.__setattr__(record.solves, "new_penalty", new)
    (series,) = Document(page("title", {"a": [record]})).data["series"]
    band = series["y"]["penalty_mean"]
    expected = np.percentile(record.client_penalties(), [10, 90], axis=1)
    np.testing.assert_allclose([band["low"], band["high"]], expected, rtol=SEVEN_DIGITS)


def test_values_that_are_not_finite_are_left_out():
    record = make_record(penalty=None)
    record.history["loss"][3:5] = np.inf, -np.inf
    data = Document(page("title", {"a": [record, make_record(penalty=None, seed=1)]})).data
    (series,) = data["series"]
    assert [k for k, value in enumerate(series["y"]["loss"]["mean"]) if value is None] == [3, 4]
    assert "penalty_mean" not in series["y"]
    assert "penalty_mean" not in [chart["column"] for chart in data["charts"]]


@pytest.mark.parametrize("evaluate_every", [1, 7, 500])
def test_long_runs_are_thinned_and_keep_what_was_evaluated(evaluate_every):
    record = make_record(rounds=10_000, evaluate_every=evaluate_every)
    text = page("title", {"a": [record]})
    (series,) = Document(text).data["series"]
    rounds, loss = np.array(series["x"]["round"]), np.array(series["y"]["loss"]["mean"], float)
    assert len(rounds) <= 1000 and "Thinned" in text
    np.testing.assert_allclose(loss, record.history["loss"][rounds], rtol=SEVEN_DIGITS)
    evaluated = np.flatnonzero(np.isfinite(record.history["loss"]))
    assert np.isfinite(loss).sum() == min(1000, len(evaluated))
    assert {evaluated[0], evaluated[-1]} <= set(rounds)
    assert "Thinned" not in page("title", {"a": [make_record()]})


def test_a_large_comparison_stays_below_two_megabytes():
    record = make_record(rounds=10_000, clients=600, cohort=60, accuracy=0.123456789)
    text = page("title", {label: [record, record] for label in "abcd"})
    assert len(text.encode()) < 2e6


def test_heat_map_shows_every_client_in_every_round():
    record = make_record(rounds=9, clients=7, cohort=3)
    (image,) = Document(page("title", {"a": [record]})).find("img")
    shown = pixels(image["src"]).astype(float).T
    epochs = np.where(shown == 0, np.nan, (shown - 1) / (heatmap.LEVELS - 1) * 20)
    np.testing.assert_array_equal(np.round(epochs), record.client_epochs())


def test_heat_map_tells_who_was_away_from_who_was_not_selected(tmp_path):
    record = make_record(rounds=9, clients=7, cohort=3)
    codes = np.array(record.solves.stop_code)
    away = ((0, 1, StopReason.DROPPED), (4, 2, StopReason.QUARANTINED))
    for k, place, reason in away:
        codes[k, place] = reason.code
    object.__setattr__(record.solves, "stop_code", codes)
    text = page("title", {"a": [record]})
    (image,) = Document(text).find("img")
    shown = pixels(image["src"]).T
    assert {tuple(where) for where in np.argwhere(shown == heatmap.LEVELS + 1)} == {
        (k, record.cohorts[k, place]) for k, place, _ in away
    }
    assert "selected, but away" in text
    assert "selected, but away" not in page("title", {"a": [make_record()]}).partition("<script")[0]
    # An image shrunk to one point: the mean is of those that worked, and away is shown where nobody did.
    table = np.array([[heatmap.AWAY, np.nan], [4.0, np.nan]])
    assert heatmap.bins(table, 1)[0].tolist() == [[4.0]] and heatmap.bins(table[:1], 1)[0].tolist() == [[heatmap.AWAY]]


def test_heat_map_averages_the_selected_of_a_bin():
    table = np.full((2500, 501), np.nan)
    table[:3, :2] = [[1, np.nan], [np.nan, 3], [np.nan, 8]]
    table[2499, 500] = 5
    image, clients, rounds = heatmap.bins(table, 10**6)
    assert (clients, rounds) == (2, 3) and image.shape == (251, 834)
    assert image[0, 0] == 4 and image[-1, -1] == 5 and np.isnan(image).sum() == image.size - 2


def test_stop_reasons_are_counted():
    records = [make_record(rounds=50, seed=seed) for seed in range(2)]
    text = page("title", {"a": records})
    maximum = sum(int(np.sum(record.epochs == 20)) for record in records)
    assert f"<td>{200 - maximum:,} <small>" in text and f"<td>{maximum:,} <small>" in text


def test_stop_reasons_have_colours_that_differ():
    (style,) = re.findall(r"<style>(.*?)</style>", page("title", {"a": [make_record()]}), flags=re.DOTALL)
    plain = dict(re.findall(r"\.(\w+) \{ background: var\((--\w+)\); \}", style))  # the rest are patterns
    assert len(plain.keys() & set(map(str, StopReason))) >= len(StopReason) - 1
    light, dark = (dict(re.findall(r"(--\w+): #(\w{6})", part)) for part in style.split("@media", 2)[:2])
    for colours in (light, light | dark):
        shown = [(name, bytes.fromhex(colours[plain[name]])) for name in map(str, StopReason) if name in plain]
        for k, (one, first) in enumerate(shown):
            for other, second in shown[:k]:
                apart = np.linalg.norm(np.subtract(np.array(list(first)), list(second)))
                assert apart > 62, f"{one} and {other} look alike"


def test_key_figures_of_a_run():
    record = make_record(rounds=20, accuracy=0.75)
    text, history = report.page("title", {"a": [record]}, table=key_figures(record)), record.history
    for name, value in {
        "loss, final": f"{history['loss'][-1]:.6g}",
        "loss, mean of the last 10": f"{history['loss'][-10:].mean():.6g}",
        "accuracy, final": "0.75",
        "local epochs saved": f"{100 * record.epoch_reduction:.1f} %",
        "gradients": f"{history['gradient_samples'].sum():,}",
    }.items():
        assert f'<th scope="row">{name}</th><td>{value}</td>' in text


def test_the_report_explains_its_table_and_needs_no_labels(tmp_path):
    """Evaluated clients whose rows have no labels are in the table of the worst without them."""
    example = fa.examples.linear_regression(num_clients=4, rows_per_client=6, dimension=3, rounds=2)
    settings = example.run_settings | {"run_dir": tmp_path / "run", "evaluate_clients_every": 1, "progress": False}
    fa.simulate(example.problem, example.algorithm("fedadmm_insa"), **settings)
    text = report.write_report(tmp_path / "run").read_text()
    assert "Worst clients" in text and '<th scope="col">labels</th>' not in text
    assert "What this table shows" in text and "the share of the local epochs" in text


def test_runs_of_no_rounds_and_of_different_lengths():
    assert "No round is done" in page("title", {"a": [make_record(rounds=0)]})
    text = page("title", {"a": [make_record(rounds=5), make_record(rounds=9)]})
    assert "end with the shortest" in text
    assert Document(text).data["series"][0]["x"]["round"] == list(range(6))
    with pytest.raises(ValueError, match="at least one record"):
        page("title", {"a": []})


# What a reader does: another abscissa, a log scale, a label switched off and on, the pointer on charts and images.
ACTIONS = """<script>
const move = (element) => {
  const box = element.getBoundingClientRect();
  const where = { clientX: box.left + box.width * 0.99, clientY: box.top + box.height * 0.01 };
  element.dispatchEvent(new PointerEvent("pointermove", where));
};
window.addEventListener("load", () => {
  document.querySelector("input[value=communicated_floats]").click();
  document.querySelector("input[value=gradient_samples]").click();
  document.querySelector(".chart input").click();
  const button = document.querySelector("#legend button");
  button?.click();
  document.body.dataset.fewer = document.querySelectorAll(".chart .line").length;
  button?.click();
  document.querySelectorAll(".chart svg[role], .heat img").forEach(move);
  document.querySelector(".chart svg[role]").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
});
</script></body>"""


def open_in_browser(text: str, folder, actions: str = ACTIONS, width: int = 800) -> str:
    """The document after its scripts have run; fails if any of them complained."""
    if BROWSER is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH")
    file = folder / "page.html"
    file.write_text(text.replace("</body>", actions), encoding="utf-8")
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
        f"--window-size={width},1000",
    ]
    command = [BROWSER, *options, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr and "data-errors" not in done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize("labels", [["one"], ["FedAvg", "FedADMM", NASTY]])
def test_a_browser_draws_all_curves(labels, tmp_path):
    seeds = 3 if len(labels) > 1 else 1
    runs = {label: [make_record(seed=seed, accuracy=0.5) for seed in range(seeds)] for label in labels}
    shown = open_in_browser(page("title", runs), tmp_path)
    document = Document(shown)
    curves = 5 * len(labels)  # loss, excess loss, accuracy, penalty, epochs
    lines = [path for path in document.find("path") if (path.get("class") or "").startswith("line s")]
    assert len(lines) == curves
    assert all(re.fullmatch(r"M[\d. ]+(L[\d. ]+)+", path["d"]) for path in lines)
    bands = [path for path in document.find("path") if (path.get("class") or "").startswith("band s")]
    assert len(bands) == (curves if seeds > 1 else 1)
    (body,) = document.find("body")
    assert int(body["data-fewer"]) == (curves - 5 if len(labels) > 1 else curves)
    tips = re.findall(r"client 0, round 12: ([\w ]+)", shown)
    epochs = runs[labels[0]][0].client_epochs()[-1, 0]  # the upper right corner
    assert tips == ["not selected" if np.isnan(epochs) else f"{epochs:.0f} epochs"] * len(labels)


MEASURE = """<script>
window.addEventListener("load", () => setTimeout(() => {
  const places = [...document.querySelectorAll(".scroll")];
  document.body.dataset.wider = places.map((place) => place.scrollWidth - place.clientWidth).join(" ");
  document.body.dataset.hints = [...document.querySelectorAll(".hint")].map((hint) => Number(!hint.hidden)).join("");
  const broken = [...document.querySelectorAll(".scale .entry")].filter((entry) => entry.offsetHeight > 30);
  document.body.dataset.broken = broken.length;
  const [loss] = document.querySelectorAll(".chart svg[role]");
  document.body.dataset.ticks = loss.querySelectorAll(".gridline").length;
}, 500));
</script></body>"""


def timed_record(number):
    """A record with simulated seconds, and curves that differ a little by its number."""
    record = make_record(seed=number % 3, accuracy=0.5)
    columns = {name: record.history[name] for name in record.history} | {
        "loss": np.linspace(2.47, 2.23 + 1e-3 * number, 13),  # a range that once had two ticks
        "accuracy": np.linspace(0.1, 0.9 - 1e-3 * number, 13),
        "simulated_seconds": 1.0 + number + np.arange(13.0),
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return dataclasses.replace(record, history=History(rows))


@pytest.mark.parametrize("width", [500, 1300, 1700])
def test_the_whole_comparison_is_seen_or_a_hint_says_where_the_rest_is(width, tmp_path):
    runs = {f"fedadmm-insa {k}": {seed: timed_record(3 * k + seed) for seed in range(3)} for k in range(3)}
    comparison = Comparison(runs, {}, "fedadmm-insa 0")
    text = page("title", comparison.by_label(), table=comparison.table())
    assert text.count("<small>±") > 12
    (body,) = Document(open_in_browser(text, tmp_path, MEASURE, width)).find("body")
    wider = [int(number) for number in body["data-wider"].split()]
    assert body["data-hints"] == "".join("1" if number > 0 else "0" for number in wider)
    assert wider[1] <= 0 and (width == 500 or wider[0] <= 0)
    assert body["data-broken"] == "0"
    assert int(body["data-ticks"]) >= 3
