"""Pictures of a history."""

from __future__ import annotations

from typing import Any

import numpy as np

from .history import History

LABELS = {
    "loss": "global loss",
    "epochs_mean": "local epochs, mean over the cohort",
    "penalty_mean": "penalty, mean over all clients",
    "gradient_samples": "per-example gradients a round",
    "communicated_floats": "floats communicated a round",
}


def plot_column(history: History, column: str, *, axes: Any = None, label: str | None = None) -> Any:
    """A column against the rounds, without the rounds in which it was not measured."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise ImportError("plot needs matplotlib: pip install 'fedjax_admm[plots]'") from None
    values = history[column]
    if axes is None:
        axes = plt.subplots(figsize=(5, 3.5), layout="constrained")[1]
    measured = np.isfinite(values)
    axes.plot(history["round"][measured], values[measured], label=label)
    axes.set_xlabel("round")
    axes.set_ylabel(LABELS.get(column, column))
    if label is not None:
        axes.legend()
    return axes
