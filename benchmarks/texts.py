"""Next characters, beside plain JAX: how long the first round compiles, and how long a gradient takes.

    python benchmarks/texts.py

The plain program is what one would write without this package: a jitted step of `jax.value_and_grad` and SGD, called
in a loop. Both are in one process and take turns; reported are each one's best turn, and their ratio; of gradients also
the ratio of the processor's time, which other programs on the machine disturb less.

`--what compile`: the first call of a round, and of the step, less the second. With each model as flax makes it, and
packed into one array, which is how the examples have it.

`--what gradients`: a round of FedAvg of the text's 28 speakers, one epoch each, against the step called over the same
batches of the same rows in the same order, one speaker after the other, and the mean of their parameters. That both
compute the same is checked. (Last batches are shorter; the step is compiled for each length before.)
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_admm as fa
from fedjax_admm.core import randomness
from fedjax_admm.core.trees import add_scaled
from fedjax_admm.engine import shuffle

MODELS = {"gru": (fa.models.gru, {}, 1.0), "transformer": (fa.models.transformer, {"length": 80}, 0.2)}
TOKENS = 76


def example(kind: str, packed: bool, **settings: Any) -> fa.examples.Example:
    make, options, rate = MODELS[kind]
    model = make(TOKENS, **options)
    model = fa.models.packed(model) if packed else model
    return fa.examples.text_mini(model=model, learning_rate=rate, **settings)


def plain_step(problem: fa.Problem, rate: float) -> Callable:
    """What one would write: (parameters, batch) -> (parameters, loss), jitted."""

    @jax.jit
    def step(params: Any, batch: Any) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(lambda params: jnp.mean(problem.loss(params, batch)))(params)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), value

    return step


def first_less_second(call: Callable[[], Any]) -> float:
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - began)
    return seconds[0] - seconds[1]


def compile_times(kinds: list[str], methods: list[str], turns: int) -> None:
    print("| model | parameters | method | plain step (s) | round (s) | ratio |")
    print("|---|---|---|---:|---:|---:|")
    for kind in kinds:
        for packed in (False, True):
            one = example(kind, packed)
            problem, algorithms = one.problem, {name: one.algorithm(name) for name in methods}
            first = problem.init(jax.random.key(0))
            batch = {name: jnp.asarray(rows[:10]) for name, rows in problem.data.fields.items()}
            best: dict[str, float] = {}
            for _ in range(turns):
                for name in ["plain", *methods]:
                    jax.clear_caches()
                    if name == "plain":
                        seconds = first_less_second(functools.partial(plain_step(problem, 0.1), first, batch))
                    else:
                        sim = fa.Simulation(problem, algorithms[name], participation=4)
                        cohorts = np.stack([sim.cohorts[0]])
                        states = [sim.init(), sim.init()]
                        seconds = first_less_second(lambda s=states, c=cohorts, sim=sim: sim.run_rounds(s.pop(), c, 1))
                    best[name] = min(best.get(name, float("inf")), seconds)
            for name in methods:
                numbers = f"{best['plain']:.2f} | {best[name]:.2f} | {best[name] / best['plain']:.2f}"
                print(f"| {kind} | {'one array' if packed else 'as in flax'} | {name} | {numbers} |", flush=True)


class PlainLoop:
    """One epoch of every speaker, by a jitted step called in a loop, and the mean of what comes of them."""

    def __init__(self, kind: str, sim: fa.Simulation, first: Any, clients: int | None) -> None:
        problem = example(kind, packed=False, num_clients=clients).problem
        self._step, self._first = plain_step(problem, MODELS[kind][2]), first
        self._weights = [float(weight) for weight in problem.data.weights]
        self._batches = [batches_of(sim, problem.data, client, 10) for client in range(problem.data.num_clients)]
        self.steps, self.params = sum(len(batches) for batches in self._batches), first

    def __call__(self) -> None:
        total = jax.tree.map(jnp.zeros_like, self._first)
        for weight, batches in zip(self._weights, self._batches, strict=True):
            params = self._first
            for batch in batches:
                params, _ = self._step(params, batch)
            total = add_scaled(total, jnp.float32(weight), params)
        self.params = jax.block_until_ready(total)


class FirstRound:
    """The same as a round of FedAvg."""

    def __init__(self, sim: fa.Simulation) -> None:
        self._sim, self._cohorts = sim, np.stack([sim.cohorts[0]])
        self.states = [sim.init()]  # one for each call, which gives it away
        self.first, self.params = self.states[0].params, None

    def __call__(self) -> None:
        state, _, _ = self._sim.run_rounds(self.states.pop(), self._cohorts, 1)
        self.params = jax.block_until_ready(state.params)


def gradient_times(kinds: list[str], turns: int, clients: int | None) -> None:
    print("| model | gradients | plain loop (ms a gradient) | round (ms a gradient) | ratio | of processor time |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in kinds:
        make, options, _ = MODELS[kind]
        model = fa.models.packed(make(TOKENS, **options))
        one = example(kind, packed=True, max_epochs=1, num_clients=clients)
        sim = fa.Simulation(one.problem, one.algorithm("fedavg"), participation=1.0)
        ours = FirstRound(sim)
        plain = PlainLoop(kind, sim, fa.models.unpacked(model, ours.first), clients)
        wall, processor = ({"plain": float("inf"), "ours": float("inf")} for _ in range(2))
        for turn in range(turns + 1):  # the first is not counted
            ours.states = [sim.init()]
            jax.block_until_ready(ours.states)
            for name, call in (("plain", plain), ("ours", ours)):
                began = time.perf_counter(), time.process_time()
                call()
                ended = time.perf_counter(), time.process_time()
                if turn:
                    wall[name] = min(wall[name], ended[0] - began[0])
                    processor[name] = min(processor[name], ended[1] - began[1])
        wanted, found = jax.tree.leaves(plain.params), jax.tree.leaves(fa.models.unpacked(model, ours.params))
        for p, q in zip(wanted, found, strict=True):
            np.testing.assert_allclose(p, q, atol=2e-4)
        each = " | ".join(f"{1000 * wall[name] / plain.steps:.2f}" for name in ("plain", "ours"))
        ratios = " | ".join(f"{of['ours'] / of['plain']:.2f}" for of in (wall, processor))
        print(f"| {kind} | {plain.steps} | {each} | {ratios} |", flush=True)


def batches_of(sim: fa.Simulation, data: fa.FederatedData, client: int, rows: int) -> list[Any]:
    """The client's batches of the first round's first epoch, on the device."""
    key = jax.random.key_data(randomness.client_key(sim.setup.key, jnp.int32(0), jnp.int32(client)))
    size, offset = int(data.sizes[client]), int(data.offsets[client])
    places = jnp.arange(offset, offset + size, dtype=jnp.int32)
    order = shuffle.epoch_order(key, jnp.int32(0))
    visited = np.asarray(shuffle.permute(order, places, jnp.int32(offset), jnp.int32(size)))
    pieces = [visited[k : k + rows] for k in range(0, size, rows)]
    return [
        jax.tree.map(lambda field, piece=piece: jnp.asarray(np.asarray(field)[piece]), data.fields) for piece in pieces
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("compile", "gradients", "both"), default="both")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--methods", default="fedavg,fedadmm_insa")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--clients", type=int, help="of the gradients: only those who say most; by default all")
    args = parser.parse_args()
    if args.what != "gradients":
        compile_times(args.models.split(","), args.methods.split(","), args.turns)
    if args.what != "compile":
        gradient_times(args.models.split(","), args.turns, args.clients)


if __name__ == "__main__":
    main()
