"""Statistics over clients: what the history says of a loss or metric that every client has a value of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

PERSONAL = "personal_"  # before the name of what was measured at clients' own parameters


@dataclass(frozen=True)
class Statistic:
    """One number of all clients' values.

    Attributes:
        label: What it is called.
        description: One line for the documentation.
        of: (values [clients], whether less is better) -> the number.
        keeps_direction: Whether more of it is better where more of the quantity is.
    """

    label: str
    description: str
    of: Callable[[np.ndarray, bool], float]
    keeps_direction: bool = True


def _quantile(share: float) -> Callable[[np.ndarray, bool], float]:
    """The value than which a share of the clients is worse."""
    return lambda values, less: float(np.quantile(values, 1 - share if less else share))


STATISTICS: Mapping[str, Statistic] = {
    "mean": Statistic("mean", "the mean over clients, each of which counts alike", lambda v, less: float(np.mean(v))),
    "std": Statistic(
        "s.d.",
        "the standard deviation over clients",
        lambda v, less: float(np.std(v)),
        keeps_direction=False,
    ),
    "worst_decile": Statistic(
        "worst decile",
        "the value than which a tenth of the clients are worse: of a loss its 90th percentile",
        _quantile(0.1),
    ),
    "best_decile": Statistic(
        "best decile",
        "the value than which a tenth of the clients are better: of a loss its 10th percentile",
        _quantile(0.9),
    ),
    "worst": Statistic("worst", "the worst client's value", _quantile(0.0)),
}


def split_name(name: str) -> tuple[str, str] | None:
    """A column's quantity and statistic; None if it is of no statistic.

    >>> split_name("personal_accuracy_worst_decile"), split_name("accuracy")
    (('personal_accuracy', 'worst_decile'), None)
    """
    for statistic in STATISTICS:
        quantity = name.removesuffix(f"_{statistic}")
        if quantity and quantity != name:
            return quantity, statistic
    return None


def column_names(quantities: Iterable[str]) -> tuple[str, ...]:
    """The names of all statistics of quantities.

    >>> column_names(["loss"])
    ('loss_mean', 'loss_std', 'loss_worst_decile', 'loss_best_decile', 'loss_worst')
    """
    return tuple(f"{quantity}_{statistic}" for quantity in quantities for statistic in STATISTICS)


def summarize(values: Mapping[str, np.ndarray], less_is_better: Callable[[str], bool]) -> dict[str, float]:
    """All statistics of all quantities, over the clients that have a value.

    Args:
        values: quantity -> [clients]; NaN where a client has no rows.
        less_is_better: Of a quantity at the server's parameters.

    Returns:
        Column -> number.

    >>> summarize({"accuracy": np.linspace(0, 1, 11)}, lambda name: False)["accuracy_worst_decile"]
    0.1
    """
    row = {}
    for quantity, every in values.items():
        known = np.asarray(every, np.float64)
        known = known[~np.isnan(known)]
        less = less_is_better(quantity.removeprefix(PERSONAL))
        for statistic, about in STATISTICS.items():
            row[f"{quantity}_{statistic}"] = about.of(known, less) if known.size else np.nan
    return row
