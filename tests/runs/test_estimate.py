"""What does not fit is said before anything runs, with the setting that would."""

import importlib
import re
import shutil
import types
import warnings

import pytest
from federations import least_squares

import fedjax_admm as fa

estimate = importlib.import_module("fedjax_admm.runs.estimate")
LOCAL = fa.LocalSolver(learning_rate=0.02, batch_size=4, max_epochs=2)
PROBLEM = least_squares([6, 3, 5])[0]


def told(monkeypatch, device=None, free=10**12, disk=10**12, **execution):
    """The warnings of an estimate, on a machine with so much memory and disk."""
    monkeypatch.setattr(estimate, "device_memory", lambda: device)
    monkeypatch.setattr(estimate, "free_memory", lambda: free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=disk))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fa.estimate(PROBLEM, fa.fedadmm(LOCAL, 0.1), participation=2, execution=fa.Execution(**execution))
    assert [str(one.message) for one in caught] == list(found.warnings)
    return list(found.warnings)


def test_nothing_is_said_of_what_fits(monkeypatch):
    assert told(monkeypatch) == told(monkeypatch, device=10**12) == told(monkeypatch, free=None) == []


@pytest.mark.parametrize(
    ("limits", "execution", "says"),
    [
        (
            {"device": 1},
            {"lanes": 1},
            r"a device has 1 bytes of memory, and the run takes .* there: use data='host' with memory-mapped rows",
        ),
        ({"device": 1}, {"lanes": 2}, r".* there: use fewer lanes than 2"),
        ({"device": 1}, {"population": "disk", "data": "host", "lanes": 1}, r".* there: use a smaller block_bytes"),
        ({"free": 1}, {}, r"1 bytes of memory are free, and the run takes .*: use "),
        ({"free": 1}, {"population": "host"}, r"1 bytes of memory are free"),
        (
            {"disk": 1},
            {"population": "disk"},
            r"1 bytes of disk are free, and clients' state may take .*: use another disk",
        ),
    ],
)
def test_what_does_not_fit(monkeypatch, limits, execution, says):
    [text] = told(monkeypatch, **limits, **execution)
    assert re.match(says, text), text
