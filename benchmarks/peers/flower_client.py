"""The clients' part of `run_flower.py`, in a module of its own, which Ray's processes import."""

import functools

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_network import Network, tensors
from work import Work


@functools.cache
def client_side(work: Work):
    """What a client's process keeps from message to message."""
    torch.set_num_threads(1)
    return Network(work), tensors(work)


def client_app(work: Work) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message, context):
        network, clients = client_side(work)
        images, labels = clients[context.node_config["partition-id"]]
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer, steps = torch.optim.SGD(network.parameters(), lr=work.learning_rate), 0
        for _ in range(work.epochs):
            for rows in torch.randperm(len(labels)).split(work.batch):
                optimizer.zero_grad()
                network.loss(images[rows], labels[rows]).backward()
                optimizer.step()
                steps += 1
        metrics = MetricRecord({"num-examples": len(labels), "steps": steps})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return type(message)(content=content, reply_to=message)

    return app
