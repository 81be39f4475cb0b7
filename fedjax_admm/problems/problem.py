"""A federated problem: pure functions on any pytree of parameters, and the clients' data."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..core import checks
from ..core.columns import is_reserved
from ..core.record import note, record, static, without_addresses
from ..core.types import Params
from ..data.federated import FederatedData
from ..data.fields import check_rows, field_names, sample
from ..data.rows import Rows, in_memory, kept, kinds, on_device


@record
class Problem:
    """What the clients minimise together: initial parameters, a loss per example, and the data of each client.

        min_z sum_i alpha_i f_i(z),    f_i the mean of `loss` over client i's rows, plus `regularizer`.

    The functions are compiled in, and the data is an argument. So another problem with the same functions and shapes
    is not compiled again, provided that you define the functions once, at a module's top level.

    Attributes:
        init: key -> parameters, any pytree of floating-point arrays.
        loss: (params, batch) -> [batch], one loss per example; `batch` has the structure of the data's fields. If a
            loss or metric has a method `check_fields(params_shape, fields, name)`, that is called first and may raise
            if the data does not fit.
        data: The clients' rows.
        regularizer: params -> scalar, added to every client's loss.
        eval_data: A pytree [rows, ...] on which the metrics are averaged.
        metrics: name -> (params, batch) -> [batch]. Larger values are taken to be better, so for an error return its
            negative.
        optimal_loss: The minimum of F, if it is known; the history then has `excess_loss`, F(z) - optimal_loss.
        client_eval_data: A FederatedData with one entry per client of `data`, in the same order: the rows that
            `simulate(evaluate_clients_every=...)` evaluates each client on. By default its own.

    >>> data = FederatedData.from_arrays({"x": np.eye(4), "y": np.ones(4)}, [[0, 1], [2, 3]])
    >>> def loss(w, batch):
    ...     return 0.5 * (batch["x"] @ w - batch["y"]) ** 2
    >>> Problem(init=lambda key: jnp.zeros(4), loss=loss, data=data).num_params
    4
    """

    init: Callable[[Array], Any] = static()
    loss: Callable[[Any, Any], Array] = static()
    data: FederatedData
    regularizer: Callable[[Any], Array] | None = static(default=None)
    eval_data: Any = None
    metrics: Any = static(default=())  # given as a mapping, kept as pairs (hashable)
    optimal_loss: Any = None
    recipe: Any = note(default=None)  # the call that makes this problem again, where there is one
    client_eval_data: FederatedData | None = None

    def __post_init__(self) -> None:
        metrics = self.metrics or ()
        if not isinstance(metrics, (Mapping, tuple)):
            raise ValueError(f"metrics must be name -> function of (params, batch), got {metrics!r}")
        object.__setattr__(self, "metrics", tuple(dict(metrics).items()))
        self._check()

    def with_optimum(self, optimal_loss: float) -> Problem:
        """The same problem, with its smallest possible loss given."""
        return dataclasses.replace(self, optimal_loss=optimal_loss)

    def with_recipe(self, recipe: dict[str, Any]) -> Problem:
        """The same problem, with the call noted that makes it again."""
        return self.replaced(recipe=recipe)  # nothing else changes, so nothing is checked again

    def on_device(self) -> Problem:
        """The same problem with all rows on the device; itself if they are there."""
        data, eval_data, client_eval_data = self.data.on_device(), self.eval_data, self.client_eval_data
        if not on_device(eval_data):
            rows = Rows(eval_data).take(0, jax.tree.leaves(eval_data)[0].shape[0])
            eval_data = jax.tree.map(jnp.asarray, rows)
        if client_eval_data is not None:
            client_eval_data = client_eval_data.on_device()
        if data is self.data and eval_data is self.eval_data and client_eval_data is self.client_eval_data:
            return self
        return self.replaced(data=data, eval_data=eval_data, client_eval_data=client_eval_data)

    def for_rounds(self) -> Problem:
        """The same problem without what only the clients' evaluation needs."""
        return self.replaced(client_eval_data=None)

    def without_rows(self) -> Problem:
        """The same problem with what is known of the clients, but no rows: what is passed to a device instead."""
        return self.replaced(data=self.data.without_rows(), eval_data=None, client_eval_data=None)

    def with_rows(self, fields: Any) -> Problem:
        """The same problem with these rows of the clients."""
        data = jax.tree.map(lambda leaf: leaf, self.data)
        object.__setattr__(data, "fields", fields)
        return self.replaced(data=data)

    def replaced(self, **values: Any) -> Problem:
        """A copy with other values, unchecked."""
        other = copy.copy(self)
        for name, value in values.items():
            object.__setattr__(other, name, value)
        return other

    def __repr__(self) -> str:
        parts = [repr(self.data), f"loss={self.loss!r}"]
        if self.regularizer is not None:
            parts.append(f"regularizer={self.regularizer!r}")
        if self.metrics:
            parts.append(f"metrics={', '.join(name for name, _ in self.metrics)}")
        return f"Problem({without_addresses(', '.join(parts))})"

    @property
    def evaluated_data(self) -> FederatedData:
        """The rows that each client is evaluated on: `client_eval_data`, or its own."""
        return self.data if self.client_eval_data is None else self.client_eval_data

    def check_client_evaluation(self) -> None:
        """Raises if a metric cannot be computed on the rows that clients are evaluated on."""
        for name, metric in self.metrics:
            source = "data" if self.client_eval_data is None else "client_eval_data"
            self._check_per_example(f"metrics[{name!r}]", metric, self.evaluated_data.fields, source)

    @property
    def params_shape(self) -> Any:
        """The parameters' shapes and dtypes."""
        return jax.eval_shape(self.init, jax.eval_shape(lambda: jax.random.key(0)))

    @property
    def num_params(self) -> int:
        """n, the number of parameters."""
        return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(self.params_shape))

    def _check(self) -> None:
        if not isinstance(self.data, FederatedData):
            kind = type(self.data).__name__
            raise ValueError(f"data must be a fa.FederatedData, got {kind}: make one with FederatedData.from_arrays")
        checks.function("init", self.init, "key -> parameters")
        checks.function("loss", self.loss, "(params, batch) -> [batch]")
        if self.regularizer is not None:
            checks.function("regularizer", self.regularizer, "params -> one number")
        try:
            shapes = self.params_shape
        except TypeError as error:
            raise ValueError(f"init must be a function of a key that returns arrays: {_first_line(error)}") from error
        check_params(shapes, "init returns")
        self._check_client_eval_data()
        if self.metrics and self.eval_data is None:
            names = ", ".join(str(name) for name, _ in self.metrics)
            raise ValueError(
                f"metrics ({names}) are averaged over eval_data, which is None: give eval_data, or leave metrics out; "
                "fa.problems.classification(model, accuracy=False) has none"
            )
        for name, metric in self.metrics:
            checks.function(f"metrics[{name!r}]", metric, "(params, batch) -> [batch]")
            if not isinstance(name, str) or not name.isprintable():
                raise ValueError(f"metrics must have names on one line, got {name!r}")
            if is_reserved(name):
                raise ValueError(f"metrics must not be called {name!r}, which is a column of its own: rename it")
        self._check_per_example("loss", self.loss, self.data.fields, "data")
        if self.eval_data is not None:
            check_rows(self.eval_data, "eval_data")
            if in_memory(self.eval_data):
                object.__setattr__(self, "eval_data", kept(self.eval_data))
            for name, metric in self.metrics:
                self._check_per_example(f"metrics[{name!r}]", metric, self.eval_data, "eval_data")
        if self.regularizer is not None:
            value = _shape_of("regularizer", self.regularizer, self.params_shape)
            shape = getattr(value, "shape", value)
            if shape != ():
                raise ValueError(f"regularizer must return one number, got shape {shape}")

    def _check_client_eval_data(self) -> None:
        data = self.client_eval_data
        if data is None:
            return
        if not isinstance(data, FederatedData):
            kind = type(data).__name__
            raise ValueError(f"client_eval_data must be a fa.FederatedData with one entry per client, got {kind}")
        if data.num_clients != self.data.num_clients:
            raise ValueError(
                f"client_eval_data must have one entry for each of data's {self.data.num_clients} clients, in their "
                f"order, got {data.num_clients}: fa.partition.holdout makes both from one partition"
            )
        self._check_per_example("loss", self.loss, data.fields, "client_eval_data")
        if self.metrics and self.eval_data is None and data.index is None:
            object.__setattr__(self, "eval_data", data.fields)  # of all clients together
        self.check_client_evaluation()

    def _check_per_example(self, name: str, function: Callable, fields: Any, source: str) -> None:
        params = self.params_shape
        # As many rows as nothing else has: one value per example must not be taken for something else.
        taken = {size for leaf in jax.tree.leaves((params, fields)) for size in leaf.shape}
        rows = next(number for number in itertools.count(3) if number not in taken)
        batch = kinds(fields, rows)
        check = getattr(function, "check_fields", None)
        if check is not None:  # of what only the values tell, such as labels out of range
            try:
                check(params, sample(fields), source)
            except ValueError:
                raise
            except Exception:
                pass  # the function itself will fail for it, with a line that names it
        value = _shape_of(name, function, params, batch, source)
        shape = getattr(value, "shape", None)
        if shape == (rows,) and name == "loss" and not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(f"loss must return floating-point values, got {value.dtype}: it has no gradient")
        if shape != (rows,):
            raise ValueError(
                f"{name} must return one value per example, shape [batch], got shape {shape} for a batch of {rows}; "
                "return the values before averaging them"
            )


def _shape_of(name: str, function: Callable, params: Params, batch: Any = None, source: str = "") -> Any:
    """What a user's function returns, as shapes; what it raises, in a line that says whose function it is."""
    arguments = (params,) if batch is None else (params, batch)
    try:
        return jax.eval_shape(function, *arguments)
    except KeyError as error:
        fields = "" if batch is None else f"{source} has the fields {field_names(batch)}, "
        text = f"{name} asks for {error}, which is not there: {fields}the parameters are {field_names(params)}"
        raise ValueError(text) from error
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ValueError(f"{name} is traced by JAX, so it must use jax.numpy, and jnp.where instead of if") from error
    except Exception as error:
        shapes = " and ".join(_shapes(tree) for tree in arguments)
        raise ValueError(f"{name} failed for {shapes}: {type(error).__name__}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _shapes(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree))


def check_params(params: Params, name: str) -> None:
    """Parameters must be floating point, and there must be some."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise ValueError(f"{name} no parameters")
    for path, leaf in leaves:
        place = jax.tree_util.keystr(path)
        if not isinstance(leaf, (numbers.Number, jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic)):
            raise ValueError(f"{name} parameters{place} that are no array, but {leaf!r}: give arrays")
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"{name} parameters{place} of dtype {dtype}: they must be floating point")
