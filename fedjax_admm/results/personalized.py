"""What fine-tuning on each client's rows gave: every client's loss and metrics before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.client_statistics import STATISTICS, summarize
from ..core.columns import look_up
from .client_metrics import EvaluatedClients
from .tables import Table

_SHOWN = ("mean", "worst_decile", "best_decile", "worst")


@dataclass(frozen=True, repr=False)
class Personalized:
    """Every client's loss and metrics: at the server's model, after fine-tuning it, and at the client's own model from
    the run.

    >>> personalized = fa.personalize(result, problem, local, epochs=1)  # doctest: +SKIP
    >>> (personalized.after["accuracy"] - personalized.before["accuracy"]).mean()  # doctest: +SKIP
    0.13
    """

    before: Mapping[str, np.ndarray]  # name -> [clients], at the server's model
    after: Mapping[str, np.ndarray]  # name -> [clients], at the fine-tuned ones
    own: Mapping[str, np.ndarray]  # name -> [clients], at the run's own u_i; {} where the method keeps none
    about: EvaluatedClients
    epochs: np.ndarray  # [clients] that fine-tuning took
    client_params: Any  # the fine-tuned models, leaves [all clients, ...], wherever the execution keeps them

    @property
    def clients(self) -> np.ndarray:
        """The clients' numbers [clients], ascending."""
        return self.about.clients

    @property
    def sizes(self) -> np.ndarray:
        """Rows that each client has to train on [clients]."""
        return self.about.sizes

    def table(self) -> Table:
        """The mean over clients and the deciles, of each loss and metric and each kind of model."""
        header = ["model", *(f"{name} {STATISTICS[each].label}" for name in self.before for each in _SHOWN)]
        kinds = {"server's": self.before, "fine-tuned": self.after} | ({"own": self.own} if self.own else {})
        rows = []
        for label, values in kinds.items():
            numbers = summarize(values, lambda name: look_up(name).less_is_better)
            rows.append((label, *(f"{numbers[f'{name}_{each}']:.4f}" for name in self.before for each in _SHOWN)))
        return Table(tuple(header), tuple(rows))

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()
