"""The authors' own program, float32, full gradients: its numbers against ours."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from federations import ridge, squared_error

import fedjax_admm as fa

TOLERANCE = 1e-5


def zeros(key):
    return jnp.zeros(20, jnp.float32)


def algorithm(config):
    local = fa.LocalSolver(learning_rate=config["learning_rate"], max_epochs=config["max_epochs"])
    beta = config["beta"]
    inexact = {name: config[name] for name in ("c", "delta", "reference", "sigma_factor")}
    return {
        "fedavg": lambda: fa.fedavg(local, average="all"),
        "admm": lambda: fa.fedadmm(local, penalty=beta),
        "admm_in": lambda: fa.fedadmm_in(local, penalty=beta, **inexact),
        "admm_insa": lambda: fa.fedadmm_insa(local, penalty=beta, mu=config["mu"], tau=config["tau"], **inexact),
    }[config["algorithm"]]()


@pytest.mark.parametrize("name", ["fedavg", "admm", "admm_in", "admm_insa"])
def test_golden(golden, name):
    truth = np.load(golden / f"linear_{name}.npz")
    config = json.loads(str(truth["config"]))
    assert config["gamma"] == 0.1  # `ridge` has it too
    clients = len(config["sizes"])
    parts = [truth["row_order"][truth["client_of_row"] == i] for i in range(clients)]
    data = fa.FederatedData.from_arrays({"x": truth["features"], "y": truth["targets"]}, parts)
    problem = fa.Problem(init=zeros, loss=squared_error, data=data, regularizer=ridge)
    result = fa.simulate(
        problem,
        algorithm(config),
        rounds=len(truth["selected"]),
        participation=truth["selected"],
        initial_params=truth["server_params"][0],
        progress=False,
    )
    assert result.params.dtype == np.float32
    relative = np.linalg.norm(result.params - truth["server_params"][-1]) / np.linalg.norm(truth["server_params"][-1])
    assert relative < TOLERANCE
    epochs = np.take_along_axis(truth["epochs"], truth["selected"], axis=1)
    np.testing.assert_array_equal(result.epochs, epochs)
    np.testing.assert_allclose(result.history["loss"], truth["loss"], rtol=TOLERANCE)
    np.testing.assert_allclose(result.state.client_params, truth["client_params"], rtol=1e-4, atol=1e-5)
    if name != "fedavg":
        np.testing.assert_allclose(result.state.duals, truth["duals"], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.state.penalties, truth["penalties"][-1])
