"""Loggers for `simulate(on_round=...)`: functions that get each new record of the history.

Any function works, even `on_round=print`; these two write to widely used services.

    with fa.loggers.tensorboard("board") as log:
        fa.simulate(problem, algorithm, rounds=100, on_round=log)
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, float]


@contextlib.contextmanager
def tensorboard(log_dir: Any) -> Iterator[Callable[[Row], None]]:
    """Writes every number of a record as a scalar for TensorBoard; needs tensorboardX.

    Args:
        log_dir: The directory for TensorBoard's files.

    >>> with fa.loggers.tensorboard("board") as log:  # doctest: +SKIP
    ...     fa.simulate(problem, algorithm, rounds=100, on_round=log)
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ImportError("loggers.tensorboard needs tensorboardX: pip install tensorboardX") from None
    with SummaryWriter(str(log_dir)) as writer:

        def log(row: Row) -> None:
            for name, value in _drop_unmeasured(row).items():
                writer.add_scalar(name, value, int(row["round"]))

        yield log


@contextlib.contextmanager
def wandb(**settings: Any) -> Iterator[Callable[[Row], None]]:
    """Sends records to Weights & Biases; needs wandb.

    Args:
        settings: Arguments of `wandb.init`.

    >>> with fa.loggers.wandb(project="federated") as log:  # doctest: +SKIP
    ...     fa.simulate(problem, algorithm, rounds=100, on_round=log)
    """
    try:
        import wandb as service  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("loggers.wandb needs wandb: pip install wandb") from None
    with service.init(**settings) as run:
        yield lambda row: run.log(_drop_unmeasured(row), step=int(row["round"]))


def _drop_unmeasured(row: Row) -> Row:
    """Without what was not measured in this round, and without the round itself."""
    return {name: value for name, value in row.items() if name != "round" and not math.isnan(value)}
