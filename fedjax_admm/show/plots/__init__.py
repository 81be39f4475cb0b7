"""Pictures of runs. matplotlib (extra `plots`) is imported when the first one is drawn."""

from .panels import heat_map, overview, plot_column, plot_epochs, plot_loss, plot_metric, plot_penalty
from .paper import paper_figure
from .response import plot_response

__all__ = [
    "heat_map",
    "overview",
    "paper_figure",
    "plot_column",
    "plot_epochs",
    "plot_loss",
    "plot_metric",
    "plot_penalty",
    "plot_response",
]
