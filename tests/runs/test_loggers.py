"""Records of the history as they reach other programs."""

from __future__ import annotations

import contextlib
import struct
import sys
import types

import numpy as np
import pytest
from test_runs import run

from fedjax_admm.runs import loggers


def test_rows_go_to_tensorboard(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    with loggers.tensorboard(tmp_path) as log:
        result = run(None, on_round=log)
    data, found = next(tmp_path.glob("events*")).read_bytes(), []
    while data:  # records: length, its checksum, an event, its checksum
        (length,) = struct.unpack_from("<Q", data)
        event, data = event_pb2.Event.FromString(data[12 : 12 + length]), data[16 + length :]
        found += [(event.step, value.simple_value) for value in event.summary.value if value.tag == "loss"]
    loss = result.history["loss"]
    measured = np.flatnonzero(np.isfinite(loss))
    assert [step for step, _ in found] == measured.tolist()
    np.testing.assert_allclose([value for _, value in found], loss[measured], rtol=1e-6)


def test_rows_go_to_wandb(monkeypatch):
    rows = []
    service_run = contextlib.nullcontext(types.SimpleNamespace(log=lambda row, step: rows.append((step, row))))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda project: service_run))
    with loggers.wandb(project="p") as log:
        result = run(None, on_round=log)
    assert [step for step, _ in rows] == list(range(13))
    assert rows[2][1]["loss"] == result.history["loss"][2] and "loss" not in rows[3][1]


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_logger_whose_package_is_missing_says_so(monkeypatch, name):
    for package in ("tensorboardX", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match="pip install"), getattr(loggers, name)(**{"log_dir": "x"}):
        pass
