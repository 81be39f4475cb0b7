"""Federated methods, one file per family."""

from .admm import fedadmm, fedadmm_in, fedadmm_insa
from .averaging import fedavg, fedprox
from .feddyn import feddyn
from .scaffold import scaffold

__all__ = ["fedadmm", "fedadmm_in", "fedadmm_insa", "fedavg", "feddyn", "fedprox", "scaffold"]
