"""Clients' rows off the device: only the cohort's travel, the next one's are read while this one computes."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from ...algorithms.base import Algorithm
from ...core import trees
from ...core.vocabulary import State
from ...exchange.conditions import Conditions
from ...problems.problem import Problem
from .. import renewal
from ..devices import everywhere, on_one_device
from ..rounds import RoundInfo, clients_of, cohort_round
from .rows import FileBytes, HostBytes, StoredClients, row_bytes


@partial(jax.jit, static_argnames=("width", "rows_per_trip", "mesh"), donate_argnames=("server", "rows"))
def _one_round(
    problem: Problem,
    algorithm: Algorithm,
    params: Any,
    server: Any,
    rows: dict[str, Any],
    ids: Array,
    last_epochs: Array,
    key: Array,
    round: Array,
    conditions: Conditions | None,
    offences: Array | None,
    *,
    width: int,
    rows_per_trip: int,
    mesh: Mesh | None,
) -> tuple[Any, Any, dict[str, Any], RoundInfo]:
    def on_a_device(problem: Problem, algorithm: Algorithm, params: Any, server: Any, *rest: Any) -> Any:
        rows, ids, last_epochs, key, round, conditions, offences = rest
        cohort = clients_of(problem, ids, trees.scalar_dtype(params))
        return cohort_round(
            problem, algorithm, params, server, rows, cohort, last_epochs, key, round, width, rows_per_trip,
            1 if mesh is None else mesh.size, conditions, offences,
        )  # fmt: skip

    run = on_a_device
    if mesh is not None:
        same = PartitionSpec()
        run = jax.shard_map(on_a_device, mesh=mesh, in_specs=same, out_specs=same, check_vma=False)
    return run(problem, algorithm, params, server, rows, ids, last_epochs, key, round, conditions, offences)


@jax.jit
def init_server(problem: Problem, algorithm: Algorithm, params: Any) -> Any:
    """The server's record at the start; the rows of all clients, which it depends on, are never made."""
    everyone = jnp.arange(problem.data.num_clients, dtype=jnp.int32)
    return trees.strongly_typed(algorithm.init(params, clients_of(problem, everyone, trees.scalar_dtype(params)))[0])


@jax.jit
def _start_rows(problem: Problem, algorithm: Algorithm, params: Any, ids: Array) -> dict[str, Any]:
    return trees.strongly_typed(algorithm.init(params, clients_of(problem, ids, trees.scalar_dtype(params)))[1])


class StoredPopulation:
    """A population whose rows are in host memory or in a file.

    kind: "host" or "disk".
    folder: where the file is; by default a temporary folder that lasts as long as the state.
    """

    def __init__(
        self, kind: str, problem: Problem, algorithm: Algorithm, shapes: State, folder: Path | None = None
    ) -> None:
        self._problem, self._algorithm, self._shapes = problem, algorithm, shapes
        self._on_disk = kind == "disk"
        self._versions = self._on_disk and folder is not None
        self._folder = folder
        # What was read for the next round: of which clients' rows, for whom, and the rows.
        self._ahead: tuple[weakref.ref[StoredClients], np.ndarray, Any] | None = None

    def init(self, params: Any) -> State:
        """z^0, and every client at its start."""
        server = init_server(self._problem, self._algorithm, params)
        maximum = np.asarray(trees.per_client(self._algorithm.local.max_epochs, jnp.arange(self._number)), np.int32)
        counted = self._shapes.offences
        offences = None if counted is None else np.zeros(counted.shape, counted.dtype)
        return State(np.int32(0), params, server, self._clients(params), np.array(maximum), offences)  # pyright: ignore[reportArgumentType]

    @property
    def _number(self) -> int:
        return self._problem.data.num_clients

    def _clients(self, params: Any) -> StoredClients:
        width = row_bytes(self._shapes.clients)
        first = jax.tree.map(jnp.copy, params)  # z^0: the state's own will be given away

        def start(ids: np.ndarray) -> Any:
            return _start_rows(self._problem, self._algorithm, first, jnp.asarray(ids, jnp.int32))

        temporary = Path(tempfile.mkdtemp()) if self._on_disk and self._folder is None else None
        folder = self._folder or temporary
        store = FileBytes(folder / "rows.bin", width) if self._on_disk and folder else HostBytes(width)
        clients = StoredClients(self._shapes.clients, self._number, start, store, versions=self._versions)
        if temporary is not None:
            weakref.finalize(clients, shutil.rmtree, temporary, ignore_errors=True)
        return clients

    def run(
        self,
        placed: tuple[Problem, Algorithm],
        conditions: Conditions | None,
        state: State,
        key: Array,
        cohorts: np.ndarray,
        upcoming: np.ndarray | None,
        wait: Callable[[Any], Any],
        **static: Any,
    ) -> tuple[State, RoundInfo, int]:
        """As `device.device_rounds`, a round at a time. `upcoming` is the cohort after the last, if it is known."""
        clients: Any = state.clients
        last_epochs: Any = state.last_epochs
        offences: Any = state.offences
        params, server, infos = state.params, state.server, []
        for k, ids in enumerate(cohorts):
            rows = self._rows_of(clients, ids)
            following = cohorts[k + 1] if k + 1 < len(cohorts) else upcoming
            # Before the round: on one device what is asked for later comes after it.
            begun = None if following is None else clients.begin(following)
            epochs, counts = last_epochs[ids], None if offences is None else offences[ids]
            params, server, new, info = _one_round(
                *placed, params, server, rows, ids, epochs, key, np.int32(state.round + k), conditions, counts, **static
            )
            ahead = None if following is None else clients.take(following, begun)  # while the device computes
            new, info = wait((new, info))
            clients.put(ids, new)
            if info.renewed:
                server = everywhere(self._renewed(server, clients), static["mesh"])
            if following is not None:
                self._ahead = weakref.ref(clients), following, _handed_over(ahead, following, new, ids)
            last_epochs[ids] = np.maximum(info.solves.epochs, 1)
            if conditions is not None:
                last_epochs[ids], counts = conditions.remembered(epochs, counts, info.solves)
            if offences is not None:
                offences[ids] = counts
            infos.append(info)
            if not info.finite:
                break
        done = len(infos)
        clients.round = int(state.round) + done
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *infos)
        return State(state.round + done, params, server, clients, last_epochs, offences), stacked, done

    def _renewed(self, server: Any, clients: StoredClients) -> Any:
        """The server's record, formed anew from all clients' rows, a block at a time."""
        blocks = ((ids, clients.take(ids)) for ids in renewal.block_ids(self._shapes.clients))
        return renewal.renew_by_blocks(self._problem, self._algorithm, on_one_device(server), blocks)

    def _rows_of(self, clients: StoredClients, ids: np.ndarray) -> Any:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0]() is clients and np.array_equal(ahead[1], ids):
            return ahead[2]
        return clients.take(ids)

    def saved(self, state: State) -> State:
        """The state as a checkpoint keeps it."""
        clients: Any = state.clients
        return dataclasses.replace(state, clients=clients.saved(with_rows=not self._versions))

    def was_saved(self, state: State) -> None:
        clients: Any = state.clients
        clients.was_saved()

    def saved_shape(self) -> State:
        """The structure of what `saved` returns."""
        index = jax.ShapeDtypeStruct((self._number,), np.int32)
        kept = {"index": index} | ({} if self._versions else {"rows": jax.ShapeDtypeStruct((0, 0), np.uint8)})
        return dataclasses.replace(self._shapes, clients=kept)

    def restored(self, saved: State, first_params: Any) -> State:
        """The state that `saved` was made from."""
        clients = self._clients(first_params)
        clients.restore(saved.clients)
        clients.round = int(saved.round)
        return dataclasses.replace(
            saved,
            round=np.int32(saved.round),
            clients=clients,
            last_epochs=np.array(saved.last_epochs),
            offences=None if saved.offences is None else np.array(saved.offences),
        )


def _handed_over(rows: Any, following: np.ndarray, new: Any, ids: np.ndarray) -> Any:
    """Rows of the next cohort that were read before this round ended, with this round's for clients in both."""
    _, there, here = np.intersect1d(following, ids, return_indices=True)
    for leaf, newer in zip(jax.tree.leaves(rows), jax.tree.leaves(new), strict=True):
        leaf[there] = newer[here]
    return rows
