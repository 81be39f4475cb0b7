"""PyTorch without a simulator: a plain loop over the clients, of FedAvg and of FedADMM-InSa (Algorithm 3)."""

import math

import torch
from torch_network import Network, tensors, threads
from work import Count, Peer, Work, serve


def make(work: Work) -> Peer:
    network, clients = Network(work), tensors(work)
    one_round = {"fedavg": fedavg, "insa": insa}[work.algorithm](work, network, clients)
    done = turns = 0

    def run(rounds: int) -> Count:
        nonlocal done, turns
        threads(turns - 1)  # after the round that warms up, all cores first
        counts = [one_round(work.members(done + k)) for k in range(rounds)]
        done, turns = done + rounds, turns + 1
        return Count(*(sum(column) for column in zip(*counts, strict=True)))

    return Peer(run, network.layers)


def fedavg(work: Work, network: Network, clients: list):
    """A function that does a round with the clients that it is given; the network is the server's between rounds."""
    parameters = list(network.parameters())

    def one_round(members) -> Count:
        z = [p.detach().clone() for p in parameters]
        mean, steps = [torch.zeros_like(p) for p in z], 0
        for i in members:
            images, labels = clients[i]
            assign(parameters, z)
            optimizer = torch.optim.SGD(parameters, lr=work.learning_rate)
            for _ in range(work.epochs):
                for rows in torch.randperm(len(labels)).split(work.batch):
                    optimizer.zero_grad()
                    network.loss(images[rows], labels[rows]).backward()
                    optimizer.step()
                    steps += 1
            share = float(work.sizes[i] / work.sizes[members].sum())
            for total, p in zip(mean, parameters, strict=True):
                total.add_(p.detach(), alpha=share)
        assign(parameters, mean)
        return Count(steps, steps * work.batch)

    return one_round


def insa(work: Work, network: Network, clients: list):
    """The same for Algorithm 3, with e(z^k) on the criterion's right-hand side (Remark 3.4) and a maximum of epochs."""
    parameters = list(network.parameters())
    start = [p.detach().clone() for p in parameters]
    u = [list(start) for _ in clients]
    lam = [[torch.zeros_like(p) for p in start] for _ in clients]
    beta = [work.penalty for _ in clients]
    alpha = [float(size / work.sizes.sum()) for size in work.sizes]

    def residual(i: int, z: list) -> float:
        """||e(u)||, u being the network's parameters: the gradient over all rows, in batches, - lam + beta (u - z)."""
        images, labels = clients[i]
        network.zero_grad()
        for rows in torch.arange(len(labels)).split(work.batch):
            (network.loss(images[rows], labels[rows]) * (len(rows) / len(labels))).backward()
        return norm([p.grad - l + beta[i] * (p.detach() - c) for p, l, c in zip(parameters, lam[i], z, strict=True)])

    def one_round(members) -> Count:
        z = [p.detach().clone() for p in parameters]
        counted, steps, gradients = list(beta), 0, 0  # beta^k, by which the server counts
        for i in members:
            images, labels = clients[i]
            assign(parameters, z)
            sigma = work.sigma_factor * math.sqrt(2) / (math.sqrt(2) + math.sqrt(beta[i] / work.c))
            reference = residual(i, z)
            gradients += len(labels)
            for epoch in range(work.epochs):
                if epoch > 0:  # before the first epoch both sides are the same residual
                    gradients += len(labels)
                    if residual(i, z) <= sigma * reference:
                        break
                for rows in torch.randperm(len(labels)).split(work.batch):
                    network.zero_grad()
                    network.loss(images[rows], labels[rows]).backward()
                    with torch.no_grad():
                        for p, l, c in zip(parameters, lam[i], z, strict=True):
                            p -= work.learning_rate * (p.grad - l + beta[i] * (p - c))
                    steps, gradients = steps + 1, gradients + len(rows)
            new = [p.detach().clone() for p in parameters]
            lam[i] = [l - beta[i] * (p - c) for l, p, c in zip(lam[i], new, z, strict=True)]
            primal = beta[i] * norm([p - old for p, old in zip(new, u[i], strict=True)])
            dual = norm([p - c for p, c in zip(new, z, strict=True)])
            u[i] = new
            if dual > work.mu * primal:
                beta[i] *= work.tau
            elif primal > work.mu * dual:
                beta[i] /= work.tau
        weight = sum(a * b for a, b in zip(alpha, counted, strict=True))
        z_hat = [torch.zeros_like(p) for p in z]
        for i in range(work.clients):
            for total, p, l in zip(z_hat, u[i], lam[i], strict=True):
                total.add_(counted[i] * p - l, alpha=alpha[i] / weight)
        assign(parameters, [(h + work.delta * c) / (1 + work.delta) for h, c in zip(z_hat, z, strict=True)])
        return Count(steps, gradients)

    return one_round


def assign(parameters: list, values: list) -> None:
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)


def norm(leaves: list) -> float:
    return math.sqrt(sum(float(leaf.square().sum()) for leaf in leaves))


if __name__ == "__main__":
    serve(make, ("torch",))
