"""How much the server of FedADMM forgets from round to round, found from what it hears: `forgetting="auto"`.

A client's message is an opinion where the server should go, v_i = u_i+ - lambda_i+ / beta_i. The server's memory, the
mean of the A messages that it counts, differs from what all clients would say now for two reasons: they vary, by
variance V from client to client, and it is old, so that what is said now lies D ahead of it. Its mean square error is
V / A + ||D||^2. The messages of one round's C clients are not old, and err by V / C. Means of independent opinions are
best weighed inversely to their errors, so the memory is to count as much as

    g A = 1 / (1 / A + ||D||^2 / V)   clients who speak now,   that is   g = 1 / (1 + A ||D||^2 / V).

While the server travels, D is large and old messages are dropped; when what is left is the clients' disagreement, all
are kept. Nothing here has a unit, and nothing depends on how many clients there are.

V and D are estimated from each round's messages. With d_i = v_i - z and c_i the change of what the server counts of
client i, measured from z (d_i less the share that still counted of its former message, if there was one), E c_i = D:

    ||D||^2 = mean over pairs of clients i != j of <c_i, c_j>,      V = mean ||d_i||^2 - ||D||^2,

both averaged over the rounds so far, the k-th with weight k. The pairs leave each client's own noise out.

`forgetting="returning"` is for a server whose result is an average over rounds (`averaged`). The messages of clients
that never return are averaged there anyway, without holding z back, so a memory of them is of no use; that of clients
who do return is, since their next message takes the place of their last. With r the share of a round's clients that
were heard before, averaged over the rounds likewise, the server then keeps g = r / (1 + A ||D||^2 / V). In a population
that is never seen twice it is 0, and the server averages the cohort; where all have been heard it is the rule above.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from ..core import checks, trees
from ..core.record import record, static
from ..core.sums import Apart

STEPS = 1024  # in which forgetting by a half is counted
MOST = 20 * STEPS  # that is forgotten at once: by a million


@record
class Statistics:
    """What the server has learnt of its clients' messages."""

    rounds: Array  # int32, of which these are averages: those in which two clients were heard or more
    drift: Array  # ||D||^2, which may be below 0
    square: Array  # mean ||d_i||^2, which is V + ||D||^2
    returned: Any = None  # r, the share of clients that were heard before; None where nobody asks


@record
class Memory:
    """What the server keeps of its forgetting."""

    forgotten: Array  # int32, how much so far, in `STEPS`: what was said at f counts 2^-((forgotten - f) / STEPS) now
    statistics: Apart  # `Statistics`


@record
class AutoForgetting:
    """The factor g of each round by the rule above."""

    returning: bool = static(default=False)  # whether only messages of clients who return are worth keeping

    def start(self, dtype: Any) -> Memory:
        """Nothing is known yet, and nothing forgotten."""
        zero = jnp.zeros((), dtype)
        return Memory(jnp.int32(0), Apart(Statistics(jnp.int32(0), zero, zero, zero if self.returning else None)))

    def say(
        self, z: Any, counted: Array, fresh: Any, held: Any, held_weight: Array, weight: Array, known: Array
    ) -> dict[str, Array]:
        """What one client tells besides its message, of which the server gets the weighted sums.

        Args:
            z: The server's parameters.
            counted: beta_i, with which the message counts.
            fresh: beta_i u+ - lambda+, what the message says.
            held: The share that still counted of what it said before.
            held_weight: Of its beta_i likewise.
            weight: alpha_i.
            known: Whether the server has heard of the client before.
        """
        said = optax.tree.sub(fresh, trees.scale(counted, z))
        change = optax.tree.sub(said, optax.tree.sub(held, trees.scale(held_weight, z)))
        squares = [optax.tree.norm(tree, squared=True).astype(counted.dtype) for tree in (said, change)]
        return {
            "weight": counted,
            "size": weight * counted**2,
            "square": squares[0] / counted,
            "own": weight * squares[1],
        } | ({"returned": jnp.where(known, counted, 0)} if self.returning else {})

    def learn(self, memory: Memory, said: dict[str, Array], change: Any, count: Array, total: Array) -> Memory:
        """The memory after a round.

        Args:
            memory: Before it.
            said: The sums of what its clients told.
            change: sum_i alpha_i beta_i c_i.
            count: How many clients it were.
            total: The weight of all messages that count, theirs included.
        """
        old, weight = memory.statistics.value, said["weight"]
        pairs = optax.tree.norm(change, squared=True).astype(weight.dtype) - said["own"]
        drift, square = pairs / (weight**2 - said["size"]), said["square"] / weight
        new = 2 / (old.rounds + 2).astype(weight.dtype)

        def average(last: Array, now: Array) -> Array:
            return last + (new * (now - last)).astype(last.dtype)

        returned = average(old.returned, said["returned"] / weight) if self.returning else None
        averaged = Statistics(old.rounds + 1, average(old.drift, drift), average(old.square, square), returned)
        known = (count > 1) & jnp.isfinite(drift) & jnp.isfinite(square)  # one client has nobody to differ from
        averaged = trees.where(known, averaged, old)

        ahead = jnp.maximum(averaged.drift, 0)
        spread = jnp.maximum(averaged.square - ahead, 0)
        clients = total * weight / said["size"]  # A, as many as these: where all weigh the same, total / weight times C
        ratio = jnp.where(ahead > 0, clients * ahead / spread, 0)
        halvings = jnp.log2(1 + ratio)
        if self.returning:
            halvings -= jnp.where(averaged.rounds > 0, jnp.log2(averaged.returned), 0)
        steps = jnp.fmin(jnp.round(STEPS * halvings), MOST).astype(jnp.int32)
        return Memory(memory.forgotten + steps, Apart(averaged))


def fade(factor: Any, steps: Array, dtype: Any) -> Array:
    """What is left after so many steps of forgetting; after one step by a factor exactly the factor."""
    if isinstance(factor, AutoForgetting):
        return jnp.exp2(-steps.astype(dtype) / STEPS)
    factor = jnp.asarray(factor, dtype)
    return jnp.where(steps == 1, factor, factor ** steps.astype(dtype))


def checked(forgetting: Any) -> Any:
    """A factor or `AutoForgetting`; None for 1, with which nothing is kept of when clients were heard from."""
    if isinstance(forgetting, AutoForgetting):
        return forgetting
    if isinstance(forgetting, str):
        checks.choice("forgetting", forgetting, ("auto", "returning"))
        return AutoForgetting(returning=forgetting == "returning")
    forgetting = checks.number("forgetting", forgetting, above=0, at_most=1)
    return None if isinstance(forgetting, float) and forgetting == 1 else forgetting
