"""fedjax_admm: a vectorized simulator of federated optimisation in JAX."""

from . import algorithms, examples, models, problems
from ._version import __version__
from .algorithms import criteria, fedadmm, fedadmm_in, fedadmm_insa, fedavg, feddyn, fedprox, penalties, scaffold
from .algorithms.local_solver import LocalSolver
from .core.record import record, static
from .core.vocabulary import Solves, State, StopReason, Subproblem
from .data import partition
from .data.federated import FederatedData
from .engine.devices import use_cpu_devices
from .engine.execution import Execution
from .engine.processes import LostProcessError, initialize_distributed
from .exchange import client_time
from .exchange.client_time import ClientTime
from .exchange.faults import Faults
from .problems.problem import Problem
from .results.comparison import Comparison
from .results.history import DivergenceError, History, Result, RunRecord
from .runs import loggers
from .runs.compare import compare
from .runs.estimate import Estimate, estimate
from .runs.interrupts import Interrupted
from .runs.resume import resume
from .runs.simulate import simulate
from .runs.simulation import Simulation
from .runs.sweeps import simulate_many
from .show import plots
from .storage.comparison_directory import read_comparison
from .storage.run_directory import RunDirectoryError, StoredRun, read_run

__all__ = [
    "ClientTime",
    "Comparison",
    "DivergenceError",
    "Estimate",
    "Execution",
    "Faults",
    "FederatedData",
    "History",
    "Interrupted",
    "LocalSolver",
    "LostProcessError",
    "Problem",
    "Result",
    "RunDirectoryError",
    "RunRecord",
    "Simulation",
    "Solves",
    "State",
    "StopReason",
    "StoredRun",
    "Subproblem",
    "__version__",
    "algorithms",
    "client_time",
    "compare",
    "criteria",
    "estimate",
    "examples",
    "fedadmm",
    "fedadmm_in",
    "fedadmm_insa",
    "fedavg",
    "feddyn",
    "fedprox",
    "initialize_distributed",
    "loggers",
    "models",
    "partition",
    "penalties",
    "plots",
    "problems",
    "read_comparison",
    "read_run",
    "record",
    "resume",
    "scaffold",
    "simulate",
    "simulate_many",
    "static",
    "use_cpu_devices",
]
