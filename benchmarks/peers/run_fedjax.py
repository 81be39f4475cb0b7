"""google/fedjax: its `federated_averaging` with its default backend and a haiku network.

fedjax 0.0.17 uses `jax.tree_map`, which JAX has removed; it is put back, and nothing else is changed.
"""

import haiku as hk
import jax
import numpy as np
import optax
from work import CLASSES, Count, Peer, Work, normalized, serve

jax.tree_map = jax.tree_util.tree_map
import fedjax  # noqa: E402

NAMES = {"logistic": ["linear"], "cnn": ["conv2_d", "conv2_d_1", "linear", "linear_1"]}


def make(work: Work) -> Peer:
    network = hk.without_apply_rng(hk.transform({"logistic": logistic, "cnn": cnn}[work.model]))
    names = NAMES[work.model]

    def loss(params, batch, key):
        logits = network.apply(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.grad(loss),
        client_optimizer=fedjax.optimizers.sgd(work.learning_rate),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch, num_epochs=work.epochs),
    )
    datasets = [fedjax.ClientDataset({"x": images[..., None], "y": labels}) for images, labels in work.data]
    start = {name: {"w": kernel, "b": bias} for name, (kernel, bias) in zip(names, work.start(), strict=True)}
    state, done = algorithm.init(jax.tree.map(jax.numpy.asarray, start)), 0
    keys = jax.random.split(jax.random.PRNGKey(0), work.clients)

    def run(rounds: int) -> Count:
        nonlocal state, done
        steps = 0
        for _ in range(rounds):
            state, _ = algorithm.apply(state, [(i, datasets[i], keys[i]) for i in work.members(done)])
            steps += work.steps(done)
            done += 1
        jax.block_until_ready(state.params)
        return Count(steps, steps * work.batch)

    return Peer(
        run, lambda: [(np.asarray(state.params[name]["w"]), np.asarray(state.params[name]["b"])) for name in names]
    )


def logistic(images):
    return hk.Linear(CLASSES)(hk.Flatten()(normalized(images.astype("float32"))))


def cnn(images):
    x = normalized(images.astype("float32"))
    for channels in (32, 64):
        x = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID")(x))
        x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), padding="VALID")
    x = jax.nn.relu(hk.Linear(512)(hk.Flatten()(x)))
    return hk.Linear(CLASSES)(x)


if __name__ == "__main__":
    serve(make, ("fedjax", "jax"))
