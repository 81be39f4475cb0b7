"""Federated methods, one file per family."""

from .admm import fedadmm, fedadmm_in, fedadmm_insa
from .averaging import fedavg, fedprox

__all__ = ["fedadmm", "fedadmm_in", "fedadmm_insa", "fedavg", "fedprox"]
