"""The two networks in PyTorch, for every peer that is built on it, with the common parameters in and out."""

import os

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from work import CLASSES, SIDE, Layers, Work, normalized


class Network(nn.Module):
    """uint8 images [N, 1, 28, 28] -> logits [N, 10]"""

    def __init__(self, work: Work):
        super().__init__()
        self.stack = nn.Sequential(*{"logistic": _logistic, "cnn": _cnn}[work.model]())
        self.load(work.start())

    def forward(self, images):
        return self.stack(normalized(images.float()))

    def loss(self, images, labels):
        return functional.cross_entropy(self(images), labels)

    def load(self, layers: Layers) -> None:
        with torch.no_grad():
            for module, (kernel, bias) in zip(self._layers(), layers, strict=True):
                module.weight.copy_(torch.from_numpy(_to_torch(kernel)))
                module.bias.copy_(torch.from_numpy(bias))

    def layers(self) -> Layers:
        pairs = [(module.weight.detach().numpy(), module.bias.detach().numpy()) for module in self._layers()]
        return [(_from_torch(weight), bias.copy()) for weight, bias in pairs]

    def _layers(self):
        return [module for module in self.stack if isinstance(module, (nn.Conv2d, nn.Linear))]


def tensors(work: Work) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of each client uint8 images [rows, 1, 28, 28] and labels [rows]."""
    return [(torch.from_numpy(images[:, None]), torch.from_numpy(labels).long()) for images, labels in work.data]


def threads(turn: int) -> None:
    """All cores and one thread in turns: the better of the two is what counts."""
    torch.set_num_threads(1 if turn % 2 else os.cpu_count() or 1)


def _logistic() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)]


def _cnn() -> list[nn.Module]:
    convolutions = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return [*convolutions, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES)]


def _to_torch(kernel: np.ndarray) -> np.ndarray:
    if kernel.ndim == 4:
        return kernel.transpose(3, 2, 0, 1).copy()
    if len(kernel) == 1024:  # PyTorch flattens [channels, height, width]
        kernel = kernel.reshape(4, 4, 64, -1).transpose(2, 0, 1, 3).reshape(1024, -1)
    return kernel.T.copy()


def _from_torch(weight: np.ndarray) -> np.ndarray:
    if weight.ndim == 4:
        return weight.transpose(2, 3, 1, 0).copy()
    kernel = weight.T.copy()
    if len(kernel) == 1024:
        kernel = kernel.reshape(64, 4, 4, -1).transpose(1, 2, 0, 3).reshape(1024, -1)
    return kernel
