"""What may happen to a client's work on its way to the server: stages, one after the other, each for one client.

A stage is a `record` that inherits from `Stage` and overrides what it needs:

    start       what it remembers of each client, {} if nothing
    absent      before the solve: whether the client does nothing in this round, and why
    receive     after the solve: what the server takes for the client's parameters, and whether it takes anything
    transform   after the algorithm's reply: what becomes of the message
    remember    at the end: what it keeps in mind, also of clients whose message did not come

In all of them every number of the stage is the client's own, and `round.key` is a key of its own for each stage,
function, round and client. Memories live with the clients' rows, on the device, in host memory or on disk, and are
saved with them. A stage is given to a run as `simulate(..., exchange=(stage, ...))`; `Faults` and `ClientTime` are
stages too, and come before those.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..algorithms import contract
from ..core import checks, randomness, trees
from ..core.record import record
from ..core.vocabulary import Client, Clients, Round

PRESENT = -1  # in place of a stop code: the client takes part
MEMORIES = "exchange"  # the clients' rows under this name are the stages'
MAKER = "a class of yours that inherits from fa.Stage, or a list of such objects"
MEMBERS = ("name", "stream", "start", "absent", "receive", "transform", "remember", "check", "check_rounds")
Memory = dict[str, Any]


class Outcome(NamedTuple):
    """What the server has of one client after its solve."""

    params: Any  # [...] what it takes for the client's u; the solve's start where it takes nothing
    center: Any  # [...] z, the server's parameters
    ok: Array  # bool: whether it takes anything
    stop_code: Array  # int32
    clipped: Array  # bool: the update's length is not the solve's
    gradients: Array  # int32, per-example gradients that the client computed
    floats: Any  # that it received and would send; 0 in rounds without exchange


class Stage:
    """A step that a client's work passes on its way to the server. Your own stage inherits from this class.

    This class does nothing. All functions are for one client; override those that you need.
    """

    @property
    def name(self) -> str:
        """The name under which the stage's memory is kept; two stages of a run must not have the same name."""
        return type(self).__name__

    @property
    def stream(self) -> int:
        """The number that sets its random draws apart from all others, from 2^31 to 2^32 - 4."""
        return 2**31 + 4 + zlib.crc32(self.name.encode()) % (2**31 - 8)

    def of_client(self, id: Array) -> Any:
        """The same stage, with this client's number in fields that have one number per client."""
        return jax.tree.map(lambda leaf: leaf[id] if jnp.ndim(leaf) == 1 else leaf, self)

    def start(self, params: Any, client: Client) -> Memory:
        """The initial memory of a client, a dict of arrays."""
        return {}

    def absent(self, memory: Memory, client: Client, round: Round) -> Array:
        """The code of a stop reason if the client does nothing in this round, else PRESENT."""
        return jnp.int32(PRESENT)

    def receive(self, outcome: Outcome, memory: Memory, client: Client, round: Round) -> Outcome:
        """The outcome as the server receives it; called before the algorithm's `reply`, also where `ok` is False."""
        return outcome

    def transform(self, message: Any, memory: Memory, client: Client, round: Round) -> tuple[Any, Memory]:
        """The (message, memory) of a client whose message arrives; other clients keep their memory."""
        return message, memory

    def remember(self, memory: Memory, stop_code: Array) -> Memory:
        """The memory after a round in which the client's solve ended with this stop code."""
        return memory

    def check(self, num_clients: int) -> None:
        """Raises ValueError if a field with one value per client does not fit the number of clients."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(self):
            if np.ndim(leaf) == 1:
                checks.client_axis(f"{type(self).__name__}{jax.tree_util.keystr(path)}", leaf, num_clients)

    def check_rounds(self, rounds: int) -> None:
        """Raises ValueError if a field with one value per round ends before the last round."""


@record
class Exchange:
    """The stages of a run, in their order. In its functions `round.key` is the run's own key."""

    stages: tuple[Any, ...] = ()

    @classmethod
    def of(cls, stages: Any) -> Exchange:
        """Of stages that a user gave, checked."""
        stages = () if stages is None else tuple(stages) if isinstance(stages, (tuple, list)) else (stages,)
        for stage in stages:
            checks.part("exchange", stage, MEMBERS, MAKER)
            if jax.tree_util.all_leaves([stage]):
                kind = type(stage).__name__
                raise ValueError(f"exchange has a {kind}, whose numbers JAX cannot see: write @fa.record above it")
            contract.check_numbers(stage)
        names = [stage.name for stage in stages]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"exchange has two stages of the name {twice[0]!r}: give one of them another `name`")
        return cls(stages)

    @property
    def transforms(self) -> bool:
        """Whether some stage changes messages, so that the server's sums are no longer those of the clients' rows."""
        return any(type(stage).transform is not Stage.transform for stage in self.stages)

    def of_client(self, id: Array) -> Exchange:
        """The same with this client's numbers."""
        return Exchange(tuple(stage.of_client(id) for stage in self.stages))

    def start(self, params: Any, client: Client) -> dict[str, Memory]:
        """Every stage's memory of a client, by the stage's name; stages without one are left out."""
        memories = {stage.name: stage.start(params, client) for stage in self.stages}
        return {name: memory for name, memory in memories.items() if memory}

    def absent(self, memories: dict[str, Memory], client: Client, round: Round) -> Array:
        """The stop code of the first stage that keeps the client away, else PRESENT."""
        code = jnp.int32(PRESENT)
        for stage in self.stages:
            mine = stage.absent(memories.get(stage.name, {}), client, _own(stage, 0, client, round))
            code = jnp.where(code == PRESENT, mine, code)
        return code

    def receive(self, outcome: Outcome, memories: dict[str, Memory], client: Client, round: Round) -> Outcome:
        """What the server takes of a client's solve, after all stages."""
        for stage in self.stages:
            memory = memories.get(stage.name, {})
            outcome = stage.receive(outcome, memory, client, _own(stage, 1, client, round))
        return outcome

    def transform(
        self, message: Any, memories: dict[str, Memory], client: Client, round: Round
    ) -> tuple[Any, dict[str, Memory]]:
        """The message after all stages, and their memories."""
        new = dict(memories)
        for stage in self.stages:
            memory = memories.get(stage.name, {})
            message, memory = stage.transform(message, memory, client, _own(stage, 2, client, round))
            if stage.name in memories:
                new[stage.name] = memory
        return message, new

    def remember(self, memories: dict[str, Memory], stop_code: Array) -> dict[str, Memory]:
        """The memories after the client's round."""
        by_name = {stage.name: stage for stage in self.stages}
        return {name: _like(by_name[name].remember(memory, stop_code), memory) for name, memory in memories.items()}


def check_stages(exchange: Exchange, params: Any, message: Any, clients: Clients) -> None:
    """Whether the stages keep to what is asked of them, on abstract parameters, a message and clients like these."""

    def once(exchange: Exchange, params: Any, message: Any, clients: Clients) -> None:
        client = contract.abstract_client(clients)
        round, zero = contract.abstract_round(client.id), jnp.int32(0)
        for stage in exchange.of_client(client.id).stages:
            kind, memory = type(stage).__name__, stage.start(params, client)
            contract.check_rows(f"{kind}.start", memory)
            contract.check_number(
                f"{kind}.absent", stage.absent(memory, client, round), (), "one stop code, or PRESENT"
            )
            outcome = Outcome(params, params, jnp.bool_(True), zero, jnp.bool_(False), zero, 1)
            received = stage.receive(outcome, memory, client, round)
            if not isinstance(received, Outcome):
                raise ValueError(f"{kind}.receive must return the outcome, changed by _replace, got {received!r}")
            contract.check_like(f"{kind}.receive: params", received.params, params)
            for name in ("ok", "stop_code", "clipped"):
                contract.check_number(f"{kind}.receive: {name}", getattr(received, name), (), verb="be")
            changed = contract.check_values(
                f"{kind}.transform", stage.transform(message, memory, client, round), ("message", "memory")
            )
            contract.check_like(f"{kind}.transform: message", changed[0], message)
            contract.check_like(f"{kind}.transform: memory", changed[1], memory)
            contract.check_like(f"{kind}.remember", stage.remember(memory, zero), memory)

    jax.eval_shape(once, exchange, contract.shapes_of(params), message, clients)


def _like(new: Any, old: Any) -> Any:
    """The new memory in the old one's dtypes."""
    return trees.where(jnp.bool_(True), new, old)


def _own(stage: Stage, function: int, client: Client, round: Round) -> Round:
    """The round with a key of its own for this stage, function and client."""
    key = jax.random.fold_in(round.key, np.uint32(stage.stream + function))
    return Round(round.number, randomness.client_key(key, round.number, client.id), round.communicates)
