"""Pictures of runs. matplotlib (extra `plots`) is imported when the first one is drawn."""

from .clients import plot_client_labels, plot_client_sizes, plot_clients, plot_personal
from .panels import heat_map, overview, plot_column, plot_epochs, plot_loss, plot_metric, plot_penalty
from .paper import paper_figure
from .response import plot_response

__all__ = [
    "heat_map",
    "overview",
    "paper_figure",
    "plot_client_labels",
    "plot_client_sizes",
    "plot_clients",
    "plot_column",
    "plot_epochs",
    "plot_loss",
    "plot_metric",
    "plot_penalty",
    "plot_personal",
    "plot_response",
]
