"""pfl: its `FederatedAveraging` in its `SimulatedBackend`, one process.

pfl does not shuffle: it cuts a user's rows into batches once and keeps them.
"""

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch.optim import SGD
from torch_network import Network, tensors, threads
from work import Count, Peer, Work, serve

NEVER = 10**9


class PflNetwork(Network):
    def metrics(self, images, labels):
        """pfl evaluates in the first round, whatever it is asked; nothing is of interest here."""
        return {}


class Pause(TrainingProcessCallback):
    """Ends `FederatedAveraging.run` after so many rounds; called again, it goes on."""

    left = 0

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.left -= 1
        return self.left == 0, Metrics()


def make(work: Work) -> Peer:
    network = PflNetwork(work)
    model = PyTorchModel(network, local_optimizer_create=SGD, central_optimizer=SGD(network.parameters(), lr=1.0))
    users = [Dataset(raw_data=client) for client in tensors(work)]
    members = iter(i for k in range(NEVER) for i in work.members(k))
    data = FederatedDataset(users.__getitem__, lambda: next(members))
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    algorithm, pause = FederatedAveraging(), Pause()
    settings = NNAlgorithmParams(
        central_num_iterations=NEVER, evaluation_frequency=NEVER, train_cohort_size=work.cohort, val_cohort_size=0
    )
    training = NNTrainHyperParams(
        local_batch_size=work.batch, local_num_epochs=work.epochs, local_learning_rate=work.learning_rate
    )
    done = turns = 0

    def run(rounds: int) -> Count:
        nonlocal done, turns
        threads(turns - 1)  # after the round that warms up, all cores first
        pause.left = rounds
        algorithm.run(settings, backend, model, training, callbacks=[pause], send_metrics_to_platform=False)
        steps = sum(work.steps(done + k) for k in range(rounds))
        done, turns = done + rounds, turns + 1
        return Count(steps, steps * work.batch)

    return Peer(run, network.layers)


if __name__ == "__main__":
    serve(make, ("pfl", "torch"))
