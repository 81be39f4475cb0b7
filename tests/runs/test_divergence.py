"""Who decides that a run has diverged, on rounds and evaluations made by hand."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.engine.ledger import Entries, RoundInfo
from fedjax_admm.runs.divergence import divergence_of_evaluation, divergence_of_round


def round_of(*reasons: str, finite: bool) -> RoundInfo:
    codes = np.array([fa.StopReason(reason).code for reason in reasons], np.int8)
    rest = dict.fromkeys((name for name in fa.Solves.__dataclass_fields__), np.ones(len(reasons)))
    entries = Entries.of(fa.Solves(**rest | {"stop_code": codes}), np.float64)
    info = RoundInfo.empty(1, len(reasons), np.float64)
    return dataclasses.replace(info, entries=jax.device_get(entries), finite=np.bool_(finite))


@pytest.mark.parametrize(
    ("reasons", "finite", "quantity"),
    [
        (("maximum", "failed"), True, None),  # one client's failure is its own
        (("dropped", "dropped"), True, None),
        (("failed", "failed"), False, "every selected client's solve"),
        (("failed", "dropped"), False, "every selected client's solve"),  # who is away solved nothing
        (("maximum", "failed"), False, "the server's parameters"),
        (("corrupted", "criterion"), False, "the server's parameters"),
    ],
)
def test_a_round_ends_the_run_if_nothing_finite_is_left(reasons, finite, quantity):
    assert divergence_of_round(round_of(*reasons, finite=finite)) == quantity


@pytest.mark.parametrize(("loss", "quantity"), [(1e300, None), (np.nan, "the loss"), (np.inf, "the loss")])
def test_an_evaluation_ends_the_run_if_the_loss_is_not_finite(loss, quantity):
    assert divergence_of_evaluation({"loss": loss, "accuracy": np.nan}) == quantity
