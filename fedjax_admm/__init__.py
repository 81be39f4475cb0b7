"""fedjax_admm: a vectorized simulator of federated optimisation in JAX."""

from . import algorithms, criteria, examples, models, penalties, plots, problems
from .algorithms import fedadmm, fedadmm_in, fedadmm_insa, fedavg, fedprox
from .data import partition
from .data.federated import FederatedData
from .history import DivergenceError, History, Result, RunRecord
from .local_solver import LocalSolver
from .problem import Problem
from .records import Solves, State, StopReason
from .simulate import Execution, Simulation, simulate

__version__ = "0.1.0"

__all__ = [
    "DivergenceError",
    "Execution",
    "FederatedData",
    "History",
    "LocalSolver",
    "Problem",
    "Result",
    "RunRecord",
    "Simulation",
    "Solves",
    "State",
    "StopReason",
    "algorithms",
    "criteria",
    "examples",
    "fedadmm",
    "fedadmm_in",
    "fedadmm_insa",
    "fedavg",
    "fedprox",
    "models",
    "partition",
    "penalties",
    "plots",
    "problems",
    "simulate",
]
