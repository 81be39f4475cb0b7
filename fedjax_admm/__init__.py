"""fedjax_admm: a vectorized simulator of federated optimisation in JAX."""

from . import algorithms, criteria, examples, models, penalties, problems
from .algorithms import fedadmm, fedadmm_in, fedadmm_insa, fedavg, fedprox
from .data import partition
from .data.federated import FederatedData
from .history import DivergenceError, History, Result, RunRecord
from .interrupts import Interrupted
from .local_solver import LocalSolver
from .problem import Problem
from .records import Solves, State, StopReason
from .run_directory import RunDirectoryError, StoredRun, read_run
from .simulate import simulate
from .simulation import Execution, Simulation

__version__ = "0.1.0"

__all__ = [
    "DivergenceError",
    "Execution",
    "FederatedData",
    "History",
    "Interrupted",
    "LocalSolver",
    "Problem",
    "Result",
    "RunDirectoryError",
    "RunRecord",
    "Simulation",
    "Solves",
    "State",
    "StopReason",
    "StoredRun",
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
    "problems",
    "read_run",
    "simulate",
]
