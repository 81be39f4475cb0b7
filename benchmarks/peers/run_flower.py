"""Flower: its `FedAvg` strategy in its simulation runtime on Ray, with one client's process a core.

The server's part waits for the turns. Flower draws the cohorts itself, so the clients say how many steps they did.
"""

import functools
import os

# Read when the packages are imported: nothing is to be sent anywhere.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flower_client import client_app
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_network import Network
from work import Count, Peer, Work, conversation, converse, given_work


def make(grid, work: Work) -> Peer:
    network = Network(work)
    arrays = ArrayRecord(network.state_dict())
    strategy = FedAvg(
        fraction_train=work.cohort / work.clients,
        fraction_evaluate=0.0,
        min_train_nodes=work.cohort,
        min_available_nodes=work.clients,
        train_metrics_aggr_fn=total_steps,
    )

    def run(rounds: int) -> Count:
        nonlocal arrays
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        arrays = result.arrays
        answers = result.train_metrics_clientapp
        clients = sum(answer["clients"] for answer in answers.values())
        if clients != rounds * work.cohort:
            raise RuntimeError(f"{clients} clients answered in {rounds} rounds of {work.cohort}")
        steps = sum(answer["steps"] for answer in answers.values())
        return Count(steps, steps * work.batch)

    def layers():
        network.load_state_dict(arrays.to_torch_state_dict())
        return network.layers()

    return Peer(run, layers)


def total_steps(replies, weighting) -> MetricRecord:
    steps = sum(reply["metrics"]["steps"] for reply in replies)
    return MetricRecord({"steps": steps, "clients": len(replies)})


def main() -> None:
    work = given_work()
    with conversation() as say:
        server = ServerApp()

        @server.main()
        def serve_turns(grid, context) -> None:
            converse(functools.partial(make, grid), ("flwr", "ray", "torch"), say)

        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client_app(work), num_supernodes=work.clients, backend_config=resources)


if __name__ == "__main__":
    main()
