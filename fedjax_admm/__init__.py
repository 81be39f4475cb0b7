"""fedjax_admm: a vectorized simulator of federated optimisation in JAX."""

from . import algorithms, client_time, criteria, examples, loggers, models, penalties, plots, problems
from .algorithms import fedadmm, fedadmm_in, fedadmm_insa, fedavg, feddyn, fedprox, scaffold
from .client_time import ClientTime
from .compare_runs import compare, read_comparison
from .comparison import Comparison
from .data import partition
from .data.federated import FederatedData
from .devices import use_cpu_devices
from .estimate import Estimate, estimate
from .execution import Execution
from .faults import Faults
from .history import DivergenceError, History, Result, RunRecord
from .hosts import LostProcessError, initialize_distributed
from .interrupts import Interrupted
from .local_solver import LocalSolver
from .problem import Problem
from .records import Solves, State, StopReason, Subproblem
from .run_directory import RunDirectoryError, StoredRun, read_run
from .simulate import resume, simulate
from .simulation import Simulation
from .sweeps import simulate_many
from .trees import record, static

__version__ = "0.1.0"

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
