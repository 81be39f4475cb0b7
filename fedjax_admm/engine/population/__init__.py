"""Where the clients' stacked state lives: on the devices, in host memory or in a file."""

from .device import device_rounds, init_state, shardings
from .rows import StoredClients
from .stored import StoredPopulation, init_server

__all__ = ["StoredClients", "StoredPopulation", "device_rounds", "init_server", "init_state", "shardings"]
