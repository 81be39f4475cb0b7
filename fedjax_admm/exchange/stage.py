"""What may happen to a client's work on its way to the server: stages, one after the other, each for one client.

A stage is a `record` that inherits from `Stage` and overrides what it needs:

    start       what it remembers of each client, {} if nothing
    absent      before the solve: whether the client does nothing in this round, and why
    receive     after the solve: what the server takes for the client's parameters, and whether it takes anything
    transform   after the algorithm's reply: what becomes of the message
    remember    at the end: what it keeps in mind, also of clients whose message did not come

In all of them every number of the stage is the client's own, and `round.key` is a key of its own for each round and
client. Memories live with the clients' rows, on the device, in host memory or on disk, and are saved with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from ..core import trees
from ..core.record import record
from ..core.vocabulary import Client, Round

PRESENT = -1  # in place of a stop code: the client takes part
Memory = dict[str, Any]


class Outcome(NamedTuple):
    """What the server has of one client after its solve."""

    params: Any  # [...] what it takes for the client's u; the solve's start where it takes nothing
    center: Any  # [...] z, what the client was sent
    ok: Array  # bool: it takes something
    stop_code: Array  # int32
    clipped: Array  # bool: the update's length is not the solve's
    gradients: Array  # int32, per-example gradients that the client computed
    floats: int  # that it received and would send


class Stage:
    """A stage that does nothing."""

    @property
    def name(self) -> str:
        """Under which its memory is kept; no two stages of a run have the same."""
        return type(self).__name__

    def start(self, params: Any, client: Client) -> Memory:
        """What it remembers of a client at first."""
        return {}

    def absent(self, memory: Memory, client: Client, round: Round) -> Array:
        """The stop code of a client that does nothing in this round, else PRESENT."""
        return jnp.int32(PRESENT)

    def receive(self, outcome: Outcome, memory: Memory, client: Client, round: Round) -> Outcome:
        """What the server takes of a client that worked."""
        return outcome

    def transform(self, message: Any, memory: Memory, client: Client, round: Round) -> tuple[Any, Memory]:
        """(message, memory) of a client whose message comes; for the others the memory stays as it was."""
        return message, memory

    def remember(self, memory: Memory, stop_code: Array) -> Memory:
        """The memory after a round in which the client's solve ended so."""
        return memory

    def check(self, num_clients: int) -> None:
        """Raises ValueError if what was given per client does not fit their number."""

    def check_rounds(self, rounds: int) -> None:
        """Raises ValueError if what was given per round does not reach to the last."""


@record
class Exchange:
    """The stages of a run, in their order."""

    stages: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"exchange has two stages of the name {twice[0]!r}: give one of them another `name`")

    def of_client(self, id: Array) -> Exchange:
        """The same with this client's numbers; tables by round, [rounds, clients], stay as they are."""

        def pick(leaf: Any) -> Array:
            leaf = jnp.asarray(leaf)
            return leaf[id] if leaf.ndim == 1 else leaf

        return Exchange(
            tuple(stage.of_client(id) if hasattr(stage, "of_client") else jax.tree.map(pick, stage) for stage in self.stages)
        )

    def start(self, params: Any, client: Client) -> dict[str, Memory]:
        """Every stage's memory of a client, by the stage's name; stages without one are left out."""
        memories = {stage.name: stage.start(params, client) for stage in self.stages}
        return {name: memory for name, memory in memories.items() if memory}

    def absent(self, memories: dict[str, Memory], client: Client, round: Round) -> Array:
        """The stop code of the first stage that keeps the client away, else PRESENT."""
        code = jnp.int32(PRESENT)
        for stage in self.stages:
            code = jnp.where(code == PRESENT, stage.absent(memories.get(stage.name, {}), client, round), code)
        return code

    def receive(self, outcome: Outcome, memories: dict[str, Memory], client: Client, round: Round) -> Outcome:
        """What the server takes of a client's solve, after all stages."""
        for stage in self.stages:
            outcome = stage.receive(outcome, memories.get(stage.name, {}), client, round)
        return outcome

    def transform(
        self, message: Any, memories: dict[str, Memory], client: Client, round: Round
    ) -> tuple[Any, dict[str, Memory]]:
        """The message after all stages, and their memories."""
        new = dict(memories)
        for stage in self.stages:
            message, memory = stage.transform(message, memories.get(stage.name, {}), client, round)
            if stage.name in memories:
                new[stage.name] = memory
        return message, new

    def remember(self, memories: dict[str, Memory], stop_code: Array) -> dict[str, Memory]:
        """The memories after the client's round."""
        by_name = {stage.name: stage for stage in self.stages}
        return {name: trees.where(True, by_name[name].remember(m, stop_code), m) for name, m in memories.items()}
