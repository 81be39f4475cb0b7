"""Several devices: the same results, no collective in the lanes loop, the data placed once.

The devices are eight virtual ones of the CPU. Their number is fixed when JAX starts, so each test is a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fedjax_admm as fa
from fedjax_admm.engine.devices import dealt

TESTS = Path(__file__).parents[1]
BEGIN = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import numpy as np
import fedjax_admm as fa
fa.use_cpu_devices(8)
import jax
jax.config.update("jax_enable_x64", True)
from federations import least_squares
LOCAL = fa.LocalSolver(learning_rate=0.05, batch_size=4, max_epochs=5)
INSA = fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5)
"""


def in_a_process(script, *arguments, optimized=False):
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(script), *arguments]
    usual = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    environment = os.environ | (usual if optimized else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_results_do_not_depend_on_devices():
    """Eight clients, whose rows can be split evenly over the devices, and five, whose cannot; all populations."""
    in_a_process("""
        executions = {
            8: ({"mesh": 2}, {"mesh": 4}, {"mesh": 8}),
            5: ({"mesh": 8}, {"mesh": 2, "lanes": 3, "population": "host"}),
        }
        for sizes, cohort in (([6, 11, 3, 8, 5, 9, 4, 7], 5), ([6, 11, 3, 8, 5], 3)):
            problem, *_ = least_squares(sizes)
            def run(**execution):
                return fa.simulate(problem, INSA, 8, participation=cohort, evaluate_every=4, progress=False,
                                   execution=fa.Execution(**execution))
            one = run(mesh=1)
            for execution in executions[len(sizes)]:
                many = run(**execution)
                for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(many.params), strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-9)
                for name in one.state.clients:
                    np.testing.assert_allclose(one.state.clients[name], np.asarray(many.state.clients[name]), rtol=1e-9, atol=1e-12)
                np.testing.assert_array_equal(one.epochs, many.epochs)
                np.testing.assert_array_equal(one.solves.gradient_samples, many.solves.gradient_samples)
    """)


def test_the_server_starts_with_the_same_bits_wherever_the_rows_are():
    """Its sums over all clients are not shared by the devices, though the rows are."""
    in_a_process("""
        problem = least_squares([3] * 64)[0]
        algorithm = fa.fedadmm_insa(LOCAL, penalty=np.random.default_rng(0).uniform(0.1, 9, 64))
        states = [
            fa.Simulation(problem, algorithm, execution=fa.Execution(mesh=mesh, population=kind)).init()
            for mesh in (2, 4) for kind in ("device", "host")
        ]
        first, *others = (jax.tree.leaves((state.params, state.server)) for state in states)
        for other in others:
            for a, b in zip(first, other, strict=True):
                np.testing.assert_array_equal(a, b)
    """)


def test_a_run_is_resumed_with_the_devices_it_began_with(tmp_path):
    said = in_a_process(
        """
        class Crash(Exception): pass
        problem, *_ = least_squares([6, 11, 3, 8])
        def run(population, on_round=None, where=None):
            return fa.simulate(problem, INSA, 8, run_dir=where, on_round=on_round, progress=False, checkpoint_seconds=0,
                               execution=fa.Execution(population=population))
        def crash(row):
            if row["round"] == 4: raise Crash
        for population in ("device", "host", "disk"):
            where = f"{sys.argv[1]}/{population}"
            try: run(population, crash, where)
            except Crash: pass
            result, whole = run(population, where=where), run(population)
            np.testing.assert_array_equal(result.params, whole.params)
            np.testing.assert_array_equal(np.asarray(result.state.duals), np.asarray(whole.state.duals))
            assert fa.read_run(where).execution["devices"] == 4  # as many as the cohort, of the eight
            if population == "device": print(result.state.duals.sharding.spec)
        """,
        str(tmp_path),
    )
    assert "'clients'" in said


def test_a_round_is_compiled_once_on_several_devices():
    """The first state lies where the later ones do; with all rows on one device, half of them would be moved."""
    in_a_process("""
        from compilations import compilations
        problem, *_ = least_squares([6, 11, 3, 8])
        for kind, program in (("device", "device_rounds"), ("host", "_work_off_block")):
            with compilations() as compiled:
                fa.simulate(problem, INSA, 3, progress=False, execution=fa.Execution(mesh=2, population=kind))
            assert compiled.count(f"jit({program})") == 1, compiled
            assert compiled.count("jit(_sums)") == (kind == "device"), compiled
        with compilations() as compiled:
            fa.simulate_many(problem, [(INSA, 0), (INSA, 1)], 3, progress=False, execution=fa.Execution(mesh=2))
        assert compiled.count("jit(sweep_rounds)") == compiled.count("jit(_sums)") == 1, compiled  # of two runs
        state = fa.Simulation(problem, INSA, execution=fa.Execution(mesh=2)).init()
        assert state.duals.sharding.spec == jax.P("clients") and state.params.sharding.is_fully_replicated
    """)


def test_rows_may_be_booleans():
    """Who took part, kept by the server as rows of its clients: a mask on any number of devices."""
    in_a_process("""
        import jax.numpy as jnp
        from typing import Any
        from fedjax_admm.algorithms.base import broadcast_params

        @fa.record
        class Newcomers:
            local: fa.LocalSolver
            criterion: Any = fa.criteria.run_to_maximum()
            everyone: Any = False
            broadcast = broadcast_params
            def init(self, params, clients):
                return 0.0
            def start(self, params, client):
                return {"seen": jnp.bool_(False)}
            def subproblem(self, sent, row, client, round):
                return fa.Subproblem()
            def reply(self, sent, row, solution, client, round):
                counted = jnp.where(self.everyone | ~row["seen"], 1.0, 0.0)
                message = {"update": counted * (solution.params - sent), "number": counted}
                return message, {"seen": jnp.ones_like(row["seen"])}
            def aggregate(self, params, server, received, round):
                total = received.total
                return params + total["update"] / jnp.maximum(total["number"], 1e-9), server

        problem, *_ = least_squares([6, 11, 3, 8])
        def run(mesh, **fields):
            return fa.simulate(problem, Newcomers(LOCAL, **fields), 3, participation=3, progress=False,
                               execution=fa.Execution(mesh=mesh))
        one, two, everyone = run(1), run(2), run(1, everyone=True)
        assert two.state.clients["seen"].dtype == bool
        np.testing.assert_allclose(one.params, two.params, rtol=1e-9)
        assert np.abs(one.params - everyone.params).max() > 1e-3
    """)


def test_a_single_device_is_the_default_one():
    in_a_process("""
        first, second = jax.devices()[:2]
        def used(device):
            problem, *_ = least_squares([6, 11])
            execution = fa.Execution(mesh=jax.sharding.Mesh([device], ("any",)))
            return fa.simulate(problem, INSA, 1, progress=False, execution=execution).params.device
        assert used(first) == first
        try: used(second)
        except ValueError as error: assert "make it the default before the data is made" in str(error)
        else: raise AssertionError
        jax.config.update("jax_default_device", second)
        assert used(second) == second
    """)


def test_no_collective_in_the_lanes_loop():
    """Collectives are in the loop over rounds, and in no loop within it."""
    hlo = in_a_process(
        """
        from fedjax_admm.engine import population
        problem, *_ = least_squares([6, 11, 3, 8])
        sim = fa.Simulation(problem, INSA, execution=fa.Execution(mesh=2))
        cohorts, numbers = np.stack([sim.cohorts[0]] * 3), (np.int32(0), np.int32(3))
        lowered = population.device_rounds.lower(sim.population.placed, sim.init(), cohorts, *numbers, layout=sim.layout,
                                                 mesh=sim.mesh, placement=sim.placement)
        print(lowered.compile().as_text())
    """,
        optimized=True,
    )
    bodies, name = {}, None
    for line in hlo.splitlines():
        if begin := re.match(r"(?:ENTRY )?%?([\w.-]+) .*\{$", line):
            name = begin.group(1)
            bodies[name] = []
        elif name is not None:
            bodies[name].append(line)
    calls = {
        name: set(re.findall(r"(?:body|condition|calls|to_apply)=%?([\w.-]+)", "\n".join(b)))
        for name, b in bodies.items()
    }
    whiles = {name: set(re.findall(r"while\(.*body=%?([\w.-]+)", "\n".join(b))) for name, b in bodies.items()}

    def reachable(name):
        seen, new = set(), {name}
        while new:
            seen |= new
            new = set().union(*(calls.get(one, set()) for one in new)) - seen
        return seen

    outer = set().union(*whiles.values())
    inner = {body for loop in outer for one in reachable(loop) for body in whiles.get(one, set())} - {
        loop for loop in outer if all(loop not in reachable(other) for other in outer - {loop})
    }
    collective = re.compile(r"all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter")
    within = [
        line for loop in inner for one in reachable(loop) for line in bodies.get(one, ()) if collective.search(line)
    ]
    assert len(inner) >= 3 and not within, within
    # There are some, outside. CPU devices meet once for each array: one of whole numbers and one of doubles when the
    # clients' rows are asked for, and again when the results are.
    sums = re.findall(r" all-reduce\(([^)]*)\)", hlo)
    assert sums and sum(operands.count("%") for operands in sums) <= 4, sums


def test_data_is_placed_once():
    in_a_process("""
        problem, *_ = least_squares([6, 11, 3, 8])
        sim = fa.Simulation(problem, INSA, execution=fa.Execution(mesh=2))
        placed = sim.population.placed.problem.data.fields["x"]
        assert len(placed.sharding.device_set) == 2
        state, _ = sim.round(sim.init())
        with jax.transfer_guard("disallow_explicit"):
            assert sim.population.placed.problem.data.fields["x"] is placed
    """)


def test_a_device_that_is_late_by_more_than_a_minute():
    """XLA would end the process; `use_cpu_devices` tells it to wait. This test sleeps for most of its time."""
    in_a_process("""
        import dataclasses, time
        import jax.numpy as jnp
        from federations import make_problem, squared_error

        def late(is_slow):
            if is_slow and not slept:
                slept.append(70)
                time.sleep(slept[0])
            return np.float64(1)

        def loss(w, batch):  # with a wait where it is trained: there a batch has four rows
            if batch["x"].shape[0] != 4:
                return squared_error(w, batch)
            is_slow = jnp.max(batch["x"]) > 50
            return squared_error(w, batch) * jax.pure_callback(late, jax.ShapeDtypeStruct((), float), is_slow, vmap_method="sequential")

        slept = []
        problem = make_problem([np.ones((4, 2)), np.full((4, 2), 100.0)], [np.ones(4)] * 2)
        algorithm = fa.fedavg(fa.LocalSolver(1e-6, batch_size=4, max_epochs=1))
        result = fa.simulate(dataclasses.replace(problem, loss=loss), algorithm, 1, execution=fa.Execution(mesh=2), progress=False)
        assert slept == [70] and result.history["seconds"][1] > 65 and np.isfinite(result.params).all()
    """)


@pytest.mark.parametrize(("jobs", "number"), [(1, 2), (5, 2), (8, 3), (40, 7)])
def test_every_job_is_dealt_once_and_evenly(jobs, number):
    table = dealt(jobs, number)
    assert sorted(place for place in table.ravel() if place < jobs) == list(range(jobs))
    counts = (table < jobs).sum(axis=1)
    assert counts.max() - counts.min() <= 1
    assert all((np.diff(row) > 0).all() for row in table)  # the longest first, none after an empty place


def test_devices_that_are_not_there():
    with pytest.raises(ValueError, match=r"mesh asks for 5000 devices, but there are .*use_cpu_devices\(5000\)"):
        fa.Simulation(fa.examples.linear_regression(num_clients=2, rows_per_client=2, dimension=2).problem,
                      fa.fedavg(fa.LocalSolver(0.1)), execution=fa.Execution(mesh=5000))  # fmt: skip


def test_too_late():
    import jax

    jax.devices()
    with pytest.raises(RuntimeError, match="came too late, JAX has started with"):
        fa.use_cpu_devices(4321)
    assert fa.use_cpu_devices(jax.local_device_count()) == jax.local_device_count()
