"""Losses and metrics of a model on batches {"x": inputs, "y": targets}, as the arguments of a `Problem`.

The functions are frozen dataclasses: those of equal models are equal, so that what was compiled for one is found
again for the other.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.types import Params
from ..models.model import Model

Batch = Mapping[str, jax.Array]


def classification(model: Model, *, accuracy: bool = True) -> dict[str, Any]:
    """Softmax cross entropy of a model's logits [batch, classes] against integer labels, and the accuracy.

    Args:
        model: Its outputs are the logits.
        accuracy: With False there is no metric, for a problem without `eval_data`.

    Returns:
        Arguments of `Problem`.

    >>> test = {"x": np.zeros((4, 28, 28, 1), np.uint8), "y": np.arange(4)}
    >>> data = fa.FederatedData.from_arrays(test, [[0, 1], [2, 3]])
    >>> model = fa.models.logistic((28, 28, 1))
    >>> fa.Problem(**fa.problems.classification(model), data=data, eval_data=test).num_params
    7850
    """
    metrics = {"accuracy": Correct(model)} if accuracy else {}
    return {"init": model.init, "loss": CrossEntropy(model), "metrics": metrics}


def next_token(model: Model, *, accuracy: bool = True) -> dict[str, Any]:
    """Softmax cross entropy of a sequence model's logits [batch, length, tokens] against the tokens [batch, length].

    The loss and the accuracy of a row are means over its tokens, except those with number 0, which only fill the row
    up.

    Args:
        model: Its outputs are the logits of the token that is to be predicted at each position.
        accuracy: With False there is no metric, for a problem without `eval_data`.

    Returns:
        Arguments of `Problem`.

    >>> rows = {"x": np.array([[0, 3, 1]]), "y": np.array([[3, 1, 2]])}
    >>> data = fa.FederatedData.from_arrays(rows, [[0]])
    >>> fa.Problem(**fa.problems.next_token(fa.models.gru(4)), data=data, eval_data=rows).metrics[0][0]
    'accuracy'
    """
    metrics = {"accuracy": TokensCorrect(model)} if accuracy else {}
    return {"init": model.init, "loss": TokenCrossEntropy(model), "metrics": metrics}


def regression(model: Model) -> dict[str, Any]:
    """Half the squared error of a model's outputs, [batch] or [batch, outputs], in the shape of the targets.

    Args:
        model: Its outputs are the predictions.

    Returns:
        Arguments of `Problem`.

    >>> data = fa.FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> fa.Problem(**fa.problems.regression(fa.models.linear(4)), data=data).num_params
    4
    """
    return {"init": model.init, "loss": HalfSquaredError(model)}


@dataclasses.dataclass(frozen=True)
class _Labelled:
    """A function of a model's logits and of labels, which must be the logits' numbers."""

    model: Model

    def check_fields(self, params: Params, fields: Batch, name: str) -> None:
        one = jax.ShapeDtypeStruct((1, *fields["x"].shape[1:]), fields["x"].dtype)
        logits = jax.eval_shape(self.model.apply, params, one)
        labels, classes = np.asarray(fields["y"]), logits.shape[-1]
        if labels.shape[1:] != logits.shape[1:-1]:
            raise ValueError(
                f"{name}['y'] must be class numbers of shape [rows], got shape {labels.shape}: of one-hot rows take "
                "np.argmax(y, axis=-1)"
            )
        wrong = labels[(labels < 0) | (labels >= classes) | (labels != np.floor(labels))]
        if wrong.size:
            raise ValueError(
                f"{name}['y'] must be whole numbers from 0 to {classes - 1}, the model's {classes} classes, "
                f"got {wrong[0]}: renumber them, or give the model more classes"
            )


@dataclasses.dataclass(frozen=True)
class CrossEntropy(_Labelled):
    """(params, batch) -> [batch]"""

    def __call__(self, params: Params, batch: Batch) -> jax.Array:
        logits = self.model.apply(params, batch["x"])
        # Chosen by comparison instead of by index: the gradient is then no scatter, and fuses with the softmax.
        chosen = batch["y"].astype(jnp.int32)[..., None] == jnp.arange(logits.shape[-1], dtype=jnp.int32)
        return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits, axis=-1, where=chosen)


@dataclasses.dataclass(frozen=True)
class Correct(_Labelled):
    """(params, batch) -> [batch], 1.0 where the largest logit is the label's"""

    def __call__(self, params: Params, batch: Batch) -> jax.Array:
        logits = self.model.apply(params, batch["x"])
        return (jnp.argmax(logits, axis=-1) == batch["y"]).astype(logits.dtype)


@dataclasses.dataclass(frozen=True)
class TokenCrossEntropy(CrossEntropy):
    """(params, batch) -> [batch], the mean over a row's tokens"""

    def __call__(self, params: Params, batch: Batch) -> jax.Array:
        return _mean_over_tokens(super().__call__(params, batch), batch["y"])


@dataclasses.dataclass(frozen=True)
class TokensCorrect(Correct):
    """(params, batch) -> [batch], the share of a row's tokens that have the largest logit"""

    def __call__(self, params: Params, batch: Batch) -> jax.Array:
        return _mean_over_tokens(super().__call__(params, batch), batch["y"])


def _mean_over_tokens(values: jax.Array, tokens: jax.Array) -> jax.Array:
    there = tokens != 0
    total = jnp.sum(values, axis=-1, where=there)
    return total / jnp.maximum(jnp.sum(there, axis=-1), 1).astype(total.dtype)


@dataclasses.dataclass(frozen=True)
class HalfSquaredError:
    """(params, batch) -> [batch]"""

    model: Model

    def __call__(self, params: Params, batch: Batch) -> jax.Array:
        outputs, targets = self.model.apply(params, batch["x"]), batch["y"]
        if outputs.shape != targets.shape:  # [N] against [N, 1] would broadcast to [N, N]
            raise ValueError(
                f"outputs and targets must have one shape, got {outputs.shape} and {targets.shape}: reshape y"
            )
        return 0.5 * jnp.square(outputs - targets).reshape(outputs.shape[0], -1).sum(axis=-1)
