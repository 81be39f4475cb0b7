"""fedjax_admm: the turn's rounds in one dispatch, as `simulate` does them between evaluations, on a device per core, as
the command line has it."""

import jax
import jax.numpy as jnp
import numpy as np
from work import CLASSES, SIDE, Count, Peer, Work, serve

import fedjax_admm as fa

fa.use_cpu_devices()
NAMES = {"logistic": ["Dense_0"], "cnn": ["ConvPoolRelu_0", "ConvPoolRelu_1", "Dense_0", "Dense_1"]}


def make(work: Work) -> Peer:
    shape = (SIDE, SIDE, 1)
    model = {
        "logistic": lambda: fa.models.logistic(shape, CLASSES, normalization=fa.models.MNIST),
        "cnn": fa.models.cnn,
    }
    task = fa.problems.classification(model[work.model]())
    images, labels = (np.concatenate(parts) for parts in zip(*work.data, strict=True))
    parts = np.split(np.arange(len(labels)), np.cumsum(work.sizes)[:-1])
    data = fa.FederatedData.from_arrays({"x": images[..., None], "y": labels}, parts)
    problem = fa.Problem(init=task["init"], loss=task["loss"], data=data)
    local = fa.LocalSolver(learning_rate=work.learning_rate, batch_size=work.batch, max_epochs=work.epochs)
    names = NAMES[work.model]
    start = {name: {"kernel": kernel, "bias": bias} for name, (kernel, bias) in zip(names, work.start(), strict=True)}
    start = jax.tree.map(jnp.asarray, start)
    sim = fa.Simulation(problem, algorithm(work, local), participation=work.cohort, initial_params=start)
    state, done = sim.init(), 0

    def run(rounds: int) -> Count:
        nonlocal state, done
        cohorts = np.stack([work.members(done + k) for k in range(rounds)])
        # Always of one shape: the round that warms up compiles for the turns too.
        room = np.concatenate([cohorts, np.repeat(cohorts[-1:], max(work.rounds - rounds, 0), axis=0)])
        state, infos, _ = sim.run_rounds(state, room, rounds)
        solves = jax.device_get(infos.solves)
        jax.block_until_ready(state)
        done += rounds
        steps = np.sum(solves.epochs[:rounds] * (work.sizes[cohorts] // work.batch))
        return Count(int(steps), int(solves.gradient_samples[:rounds].sum()))

    def layers():
        return [(np.asarray(state.params[name]["kernel"]), np.asarray(state.params[name]["bias"])) for name in names]

    return Peer(run, layers)


def algorithm(work: Work, local: fa.LocalSolver):
    if work.algorithm == "fedavg":
        return fa.fedavg(local)
    settings = dict(c=work.c, mu=work.mu, tau=work.tau, delta=work.delta, sigma_factor=work.sigma_factor)
    return fa.fedadmm_insa(local, penalty=work.penalty, **settings)


if __name__ == "__main__":
    serve(make, ("jax",))
