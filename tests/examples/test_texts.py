"""Texts by speaker: how they are read and cut, what sequence models compute, and that examples run and resume."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SHARED
from test_sources import TEXT, write_set

import fedjax_admm as fa
from fedjax_admm import models, problems
from fedjax_admm.core.files import DamagedFileError
from fedjax_admm.data import text
from fedjax_admm.data.sources import DatasetNotFoundError

PLAY = "ANN:\nGood day.\n\nBOB:\nWhy?\nSo early?\n\nNOBODY:\n\nANN:\nTo see: you.\n\nBOB:\nAh!\n"
SHAKESPEARE = SHARED / "text" / "tinyshakespeare.txt"
SMALL = dict(length=6, rounds=2, batch_size=2, max_epochs=2, participation=2)


@pytest.fixture
def play(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text(PLAY)
    return path


def tiny(tokens=22, features=4, hidden=3):
    return models.gru(tokens, features=features, hidden=hidden)


def test_speakers_are_split_and_their_speeches_joined():
    said = text.split_speakers(PLAY)
    assert said == {"ANN": "Good day.\nTo see: you.\n", "BOB": "Why?\nSo early?\nAh!\n"}
    with pytest.raises(ValueError, match="begins with no speaker"):
        text.split_speakers("Good day.\n\nANN:\nWhy?")
    with pytest.raises(ValueError, match="begins with no speaker"):
        text.split_speakers("")


def test_rows_are_what_a_loop_makes_of_the_text(play):
    example = fa.examples.text(play, model=tiny(), learning_rate=0.1, **SMALL)
    characters = sorted(set("Good day.\nTo see: you.\nWhy?\nSo early?\nAh!\n"))
    number = {character: k + 1 for k, character in enumerate(characters)}
    x, y, tests, clients = [], [], [], []
    for i, said in enumerate(["Good day.\nTo see: you.\n", "Why?\nSo early?\nAh!\n"]):
        kept = len(said) - round(0.2 * len(said))
        before = [0] + [number[c] for c in said[:-1]]
        for start in range(0, kept, 6):
            end = min(start + 6, kept)
            x.append((before[start:end] + [0] * 6)[:6])
            y.append(([number[c] for c in said[start:end]] + [0] * 6)[:6])
            clients.append(i)
        tests += [(before[kept:] + [0] * 6)[:6]]
    np.testing.assert_array_equal(example.problem.data.fields["x"], x)
    np.testing.assert_array_equal(example.problem.data.fields["y"], y)
    np.testing.assert_array_equal(example.problem.eval_data["x"], tests)
    assert example.problem.data.sizes.tolist() == np.bincount(clients).tolist()
    assert example.problem.data.names == ["ANN", "BOB"] and example.problem.data.fields["x"].dtype == np.uint8


def test_losses_and_accuracies_are_means_over_the_characters_that_are_there():
    model = tiny()
    params = model.init(jax.random.key(0))
    x, y = np.array([[0, 1, 2], [3, 4, 0], [5, 0, 0]], np.uint8), np.array([[1, 2, 3], [4, 5, 0], [0, 0, 0]], np.uint8)
    task = problems.next_token(model)
    loss, accuracy = task["loss"](params, {"x": x, "y": y}), task["metrics"]["accuracy"](params, {"x": x, "y": y})
    logits = np.asarray(model.apply(params, jnp.asarray(x)), np.float64)
    likelihood = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for i, there in enumerate((3, 2, 0)):
        mean = -sum(likelihood[i, t, y[i, t]] for t in range(there)) / max(there, 1)
        hits = sum(logits[i, t].argmax() == y[i, t] for t in range(there)) / max(there, 1)
        np.testing.assert_allclose([loss[i], accuracy[i]], [mean, hits], rtol=1e-5)
    with pytest.raises(ValueError, match="from 0 to 21"):
        data = fa.FederatedData.from_arrays({"x": x, "y": y + np.uint8(30)}, [[0, 1, 2]])
        fa.Problem(**problems.next_token(model, accuracy=False), data=data)


@pytest.mark.parametrize("model", [models.gru(9), models.transformer(9, length=7, width=8, heads=2)], ids=["gru", "tr"])
def test_predictions_see_no_later_character(model):
    params = model.init(jax.random.key(1))
    x = np.random.default_rng(0).integers(9, size=(2, 7)).astype(np.uint8)
    other = x.copy()
    other[:, 4:] = (other[:, 4:] + 1) % 9
    one, two = (model.apply(params, jnp.asarray(rows)) for rows in (x, other))
    np.testing.assert_allclose(one[:, :4], two[:, :4], atol=1e-6)
    assert np.abs(one[:, 4:] - two[:, 4:]).max() > 1e-3


def test_equal_models_are_one_to_the_compiler():
    assert models.gru(9) == models.gru(9) != models.gru(9, hidden=3)
    one, two = (models.transformer(9, length=5, width=8, heads=2) for _ in range(2))
    assert one == two and hash(one.init) == hash(two.init) and hash(one.apply) == hash(two.apply)


def test_gru_is_the_published_recurrence():
    """Cho et al. 2014, with the reset gate after the product, as flax's GRUCell."""
    model = models.gru(5, features=3, hidden=2)
    params = jax.tree.map(np.asarray, model.init(jax.random.key(2)))
    cell, h, outputs = params["recurrence"]["cell"], np.zeros(2), []
    x = np.array([1, 4, 0, 2], np.uint8)
    for token in x:
        inputs = params["embedding"]["embedding"][token] @ cell["dense_i"]["kernel"] + cell["dense_i"]["bias"]
        (ir, iz, inew), (hr, hz, hn) = np.split(inputs, 3), np.split(h @ cell["dense_h"]["kernel"], 3)
        r, z = 1 / (1 + np.exp(-(ir + hr))), 1 / (1 + np.exp(-(iz + hz)))
        h = (1 - z) * np.tanh(inew + r * hn) + z * h
        outputs.append(h @ params["logits"]["kernel"] + params["logits"]["bias"])
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x[None]))[0], outputs, atol=1e-5)


def test_the_embedded_text_is_as_documented():
    file = Path(text.__file__).with_name("text_mini.txt")
    note = file.with_suffix(".md").read_text()
    assert hashlib.sha256(file.read_bytes()).hexdigest() == re.search(r"SHA-256 of the file: (\w+)", note)[1]
    assert file.stat().st_size < 300_000
    said = text.split_speakers(text.load_text("text_mini"))
    sizes = sorted(map(len, said.values()))
    assert len(said) == 28 and sizes[0] < 2000 and sizes[-1] > 34_000
    assert len(re.findall(r"^[^\n:]+:$", text.load_text("text_mini"), re.MULTILINE)) >= 140


@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="text is not beside the checkout")
def test_shakespeare_by_speaker():
    example = fa.examples.text(SHAKESPEARE)
    data = example.problem.data
    assert data.num_clients == 299 and data.names[:2] == ["First Citizen", "All"]
    whole = text.split_speakers(text.load_text(SHAKESPEARE))
    sizes = sorted(map(len, whole.values()))
    assert 5 <= sizes[0] <= 7 and 37_000 < sizes[-1] < 38_000
    kept = sum(int(np.count_nonzero(rows["y"])) for rows in (data.fields, example.problem.eval_data))
    assert kept == sum(sizes)


def write_text_set(root, parts):
    splits = {split: [[{"text": part.encode()}]] for split, part in parts.items()}
    write_set(root / "tiny_shakespeare" / "1.0.0", {"text": TEXT}, splits, supervised=())


def test_tfds_gives_the_same_text(tmp_path, play):
    write_text_set(tmp_path, {"test": PLAY[40:], "train": PLAY[:30], "validation": PLAY[30:40]})
    assert text.load_text("tiny_shakespeare", tmp_path) == PLAY
    options = dict(model=tiny(), learning_rate=0.1, **SMALL)
    one, two = fa.examples.text(data_dir=tmp_path, **options), fa.examples.text(play, **options)
    np.testing.assert_array_equal(one.problem.data.fields["y"], two.problem.data.fields["y"])


def test_what_is_no_text_is_told_in_one_line(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="tiny_shakespeare' not found"):
        fa.examples.text(data_dir=tmp_path)
    with pytest.raises(DatasetNotFoundError, match="no file"):
        fa.examples.text(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes("É".encode("latin-1"))
    with pytest.raises(ValueError, match="no text in UTF-8, at byte 0"):
        fa.examples.text(tmp_path / "latin.txt")
    write_set(tmp_path / "pairs" / "1.0.0", {"a": TEXT, "b": TEXT}, {"train": [[{"a": b"x", "b": b"y"}]]}, ("a", "b"))
    with pytest.raises(ValueError, match="'pairs' is no text"):
        text.load_text("pairs", tmp_path)
    write_text_set(tmp_path, {"train": PLAY})
    record = next((tmp_path / "tiny_shakespeare" / "1.0.0").glob("*array_record*"))
    record.write_bytes(record.read_bytes()[:-1000])
    with pytest.raises(DamagedFileError, match="tiny_shakespeare"):
        text.load_text("tiny_shakespeare", tmp_path)
    for wrong, message in (
        ({"model": "lstm"}, "model must be 'gru' or 'transformer'"),
        ({"model": tiny()}, "learning_rate is None"),
        ({"length": 0}, "length must be at least 1"),
        ({"fraction": 1.0}, "fraction must be below 1"),
        ({"num_clients": 99}, "more than the 28 speakers"),
    ):
        with pytest.raises(ValueError, match=message):
            fa.examples.text_mini(**wrong)


def test_a_run_on_a_text_is_resumed_from_its_settings(play, tmp_path):
    example = fa.examples.text(play, model="gru", learning_rate=0.5, **SMALL)
    algorithm = example.algorithm("fedadmm_insa", penalty=0.1)
    whole = fa.simulate(example.problem, algorithm, progress=False, **example.run_settings)
    fa.simulate(example.problem, algorithm, progress=False, run_dir=tmp_path / "run", **example.run_settings)
    settings = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert settings["problem"]["recipe"]["example"] == "text"
    resumed = fa.resume(tmp_path / "run", progress=False)
    np.testing.assert_array_equal(whole.history["loss"], resumed.history["loss"])
    assert whole.history["loss"][-1] < whole.history["loss"][0]
