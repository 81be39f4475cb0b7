"""The compiled parts lower for GPUs and TPUs, which are not here: `jax.export` finds what has no rule there.

What it cannot find is what only their compilers refuse.
"""

from __future__ import annotations

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import least_squares, squared_error
from jax.sharding import AbstractMesh, AxisType

import fedjax_admm as fa
from fedjax_admm import models
from fedjax_admm.engine.devices import AXIS
from fedjax_admm.engine.population import device
from fedjax_admm.problems import evaluation
from fedjax_admm.problems import standard as problems

PLATFORMS = ("cuda", "tpu")
DEVICES = 8
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=3)


def linear():
    return least_squares([6, 11, 3, 8, 5, 9, 4, 7], dtype=np.float32)[0]


def images(model, shape):
    x = np.zeros((16, *shape), np.uint8)
    fields = {"x": x, "y": np.arange(16, dtype=np.int32) % 10}
    data = fa.FederatedData.from_arrays(fields, np.split(np.arange(16), 8))
    return fa.Problem(data=data, eval_data=fields, **problems.classification(model))


def insa(**options):
    return fa.fedadmm_insa(fa.LocalSolver(learning_rate=0.05, max_epochs=3, **options), penalty=0.1)


def named(name):
    make = getattr(fa, name)
    return make(LOCAL, **{"penalty": 0.1} if "penalty" in inspect.signature(make).parameters else {})


def exported(problem, algorithm, mesh=None, placement="dealt"):
    """The program of several rounds, with a lane per client as on accelerators."""
    cohort = problem.data.num_clients if getattr(algorithm, "needs_everyone", False) else 4
    sim = fa.Simulation(problem, algorithm, participation=cohort)
    state = sim.shapes()
    if mesh is not None:
        places = device.shardings(state, mesh)
        state = jax.tree.map(lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), state, places)
    setup = dataclasses.replace(sim.setup, problem=problem.on_device().for_rounds())
    shapes = (setup, state, np.zeros((3, cohort), np.int32), np.int32(0), np.int32(2))
    export = jax.export.export(device.device_rounds, platforms=PLATFORMS)
    devices = 1 if mesh is None else DEVICES
    layout = dataclasses.replace(sim.layout, width=max(1, 4 // devices), devices=devices, share=1)
    return export(*shapes, layout=layout, mesh=mesh, placement=placement if mesh else None)


CASES = {
    **{name: lambda name=name: (linear(), named(name)) for name in fa.algorithms.__all__},
    "full gradient": lambda: (linear(), insa()),
    "adam": lambda: (linear(), insa(batch_size=4, optimizer=optax.adam)),
    "line search": lambda: (linear(), insa(optimizer=optax.lbfgs)),
    "cnn": lambda: (images(models.cnn(), (28, 28, 1)), insa(batch_size=2)),
    "resnet20": lambda: (images(models.resnet20(), (32, 32, 3)), insa(batch_size=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_rounds(case):
    with jax.enable_x64(False):
        assert exported(*CASES[case]()).platforms == PLATFORMS


@pytest.mark.parametrize("placement", ["dealt", "home"])
def test_rounds_on_a_mesh(placement):
    mesh = AbstractMesh((DEVICES,), (AXIS,), axis_types=(AxisType.Auto,))
    with jax.enable_x64(False):
        problem = least_squares([4] * DEVICES, dtype=np.float32)[0]  # which can be split evenly, rows and all
        program = exported(problem, insa(batch_size=4), mesh, placement)
    assert program.nr_devices == DEVICES and "all_reduce" in program.mlir_module()


def test_evaluation():
    with jax.enable_x64(False):
        problem = images(models.cnn(), (28, 28, 1))
        export = jax.export.export(evaluation._sums, platforms=PLATFORMS)
        params = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), problem.params_shape)
        assert export(problem, params, rows=4, eval_rows=4).platforms == PLATFORMS


def only_on_a_cpu(w, batch):
    return squared_error(w, batch) + jax.scipy.linalg.schur(jnp.eye(2, dtype=w.dtype))[0][0, 0]


def test_what_has_no_rule_is_found():
    with jax.enable_x64(False):
        problem = dataclasses.replace(linear(), loss=only_on_a_cpu)
        with pytest.raises(NotImplementedError, match="schur"):
            exported(problem, fa.fedavg(LOCAL))
