"""Clients at home or dealt over devices: what moves, what each device holds, and the same results.

As in test_devices, each test is a process with eight virtual devices.
"""

from __future__ import annotations

import pytest
from test_devices import in_a_process

BEGIN = """
import re
import jax.numpy as jnp
from fedjax_admm.engine.population import device_rounds

N = 3000  # parameters: more than anything else that devices exchange
def loss(w, batch):
    return 0.5 * (batch["x"] @ w[:4] - batch["y"]) ** 2
def problem_of(clients, rows=3):
    rng = np.random.default_rng(0)
    fields = {"x": rng.normal(size=(clients * rows, 4)).astype("f"), "y": rng.normal(size=clients * rows).astype("f")}
    parts = np.arange(clients * rows).reshape(clients, rows)
    return fa.Problem(init=lambda key: jnp.zeros(N, jnp.float32), loss=loss, data=fa.FederatedData.from_arrays(fields, parts))
def compiled_round(algorithm, cohort, placement, mesh, clients=32, rows=3, lanes=2):
    execution = fa.Execution(lanes=lanes, mesh=mesh, placement=placement)
    sim = fa.Simulation(problem_of(clients, rows), algorithm, participation=cohort, execution=execution)
    ids = jnp.zeros((1, cohort), jnp.int32)
    options = dict(layout=sim.layout, mesh=sim.mesh, placement=sim.placement)
    return device_rounds.lower(sim.population.placed, sim.init(), ids, jnp.int32(0), jnp.int32(1), **options).compile()
def large_collectives(text):
    "The numbers in every collective's results of parameter size, by kind."
    found = []
    for line in text.splitlines():
        match = re.search(r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\\(", line)
        if match:
            sizes = [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in re.findall(r"\\[([\\d,]*)\\]", match[1])]
            found += [(match[2], size) for size in sizes if size >= N // 2]
    return found
"""


def test_at_home_one_sum_of_one_message_is_all_that_moves():
    """Counted in the compiled program: n for FedAvg, 2 n + 1 for the family with "current"; a few numbers ride along."""
    in_a_process(
        BEGIN
        + """
for algorithm, message in ((fa.fedavg(LOCAL), N), (fa.scaffold(LOCAL), 2 * N), (fa.fedadmm_in(LOCAL), N + 1), (INSA, 2 * N + 1)):
    for cohort in (8, 24):
        found = large_collectives(compiled_round(algorithm, cohort, "home", 8).as_text())
        assert {kind for kind, _ in found} == {"all-reduce"}, found
        assert message <= sum(size for _, size in found) <= message + 3, (type(algorithm), cohort, found)
""",
        optimized=True,
    )


def test_per_device_memory_falls_with_devices():
    """Rows, data and temporaries of the program that one device runs."""
    in_a_process(
        BEGIN
        + """
held = []
for mesh in (2, 4, 8):
    memory = compiled_round(INSA, 16, "home", mesh, clients=64, rows=500).memory_analysis()
    held.append((memory.argument_size_in_bytes, memory.temp_size_in_bytes))
rows, data = 64 * 2 * N * 4, 64 * 500 * 5 * 4
for (arguments, temporaries), mesh in zip(held, (2, 4, 8)):
    assert arguments < (rows + data) / mesh + 10 * N * 4, held
    assert temporaries < 60 * N * 4, held
""",
        optimized=True,
    )


def test_temporaries_do_not_grow_with_the_cohort():
    in_a_process(
        BEGIN
        + """
for algorithm in (fa.fedavg(LOCAL), INSA):
    # One device holds the order of work besides; several add the records of solves, which are no parameters.
    for placement, mesh, client in (("auto", 1, 9), ("home", 8, 200)):
        small, large = (compiled_round(algorithm, cohort, placement, mesh, clients=256).memory_analysis().temp_size_in_bytes for cohort in (16, 256))
        assert large < small + (256 - 16) * client, (placement, small, large)
        assert large < (16 * 2 + 12) * N * 4 + 256 * client, (placement, large / 4 / N)
""",
        optimized=True,
    )


def test_temporaries_do_not_grow_with_the_population():
    """Rows are read and written where they are. With one lane XLA likes to copy all of them for each job."""
    in_a_process(
        BEGIN
        + """
for algorithm, mesh, lanes in ((INSA, 1, 1), (INSA, 1, 2), (INSA, 2, 1), (fa.scaffold(LOCAL), 1, 1)):
    held = []
    for clients in (32, 256):
        compiled = compiled_round(algorithm, 16, "home" if mesh > 1 else "auto", mesh, clients=clients, lanes=lanes)
        held.append(compiled.memory_analysis().temp_size_in_bytes)
    assert held[1] < held[0] + (256 - 32) * 20, (algorithm, mesh, lanes, held)
""",
        optimized=True,
    )


@pytest.mark.parametrize("placement", ["home", "dealt"])
def test_same_results_wherever_clients_are_solved(placement):
    """All methods, rows in several blocks where they travel, overlapping data, clients of unequal size."""
    in_a_process(f"""
        import fedjax_admm.engine.placement as placements
        placements.BLOCK_BYTES = 600  # a few clients at a time
        rng = np.random.default_rng(1)
        sizes = rng.integers(1, 12, size=16).tolist()
        methods = dict(fedavg=fa.fedavg(LOCAL), all=fa.fedavg(LOCAL, average="all"), insa=INSA, scaffold=fa.scaffold(LOCAL),
                       sent=fa.fedadmm_insa(LOCAL, penalty=0.1, mu=1.5, unselected_penalty="sent"), feddyn=fa.feddyn(LOCAL, 0.3),
                       pd=fa.fedpd(LOCAL, 0.3, skip=0.5))
        problem, *_ = least_squares(sizes)
        for name, method in methods.items():
            def run(**execution):
                participation = 1.0 if getattr(method, "needs_everyone", False) else 11
                return fa.simulate(problem, method, 5, participation=participation, progress=False, execution=fa.Execution(lanes=2, **execution))
            one, many = run(mesh=1), run(mesh=8, placement={placement!r})
            np.testing.assert_allclose(one.params, np.asarray(many.params), rtol=1e-9)
            np.testing.assert_array_equal(one.epochs, many.epochs)
            for field in one.state.clients:
                np.testing.assert_allclose(one.state.clients[field], np.asarray(many.state.clients[field]), rtol=1e-9, atol=1e-12)
            assert (many.history["device_efficiency"][1:] <= 1).all() and (one.history["device_efficiency"][1:] == 1).all()
    """)


def test_data_that_clients_share_is_at_home_with_each():
    in_a_process("""
        x, y = np.random.default_rng(0).normal(size=(20, 5)), np.arange(20.0)
        parts = [np.arange(k, k + 5) for k in range(8)]
        data = fa.FederatedData.from_arrays({"x": x, "y": y}, parts, allow_overlap=True)
        problem = fa.Problem(init=lambda key: jax.numpy.zeros(5), loss=lambda w, b: (b["x"] @ w - b["y"]) ** 2, data=data)
        one, home = (fa.simulate(problem, INSA, 4, progress=False, execution=fa.Execution(**e))
                     for e in (dict(mesh=1), dict(mesh=4, placement="home")))
        np.testing.assert_allclose(one.params, np.asarray(home.params), rtol=1e-9)
    """)


def test_what_cannot_be_split_evenly_is_told_and_auto_deals():
    in_a_process("""
        problem, *_ = least_squares([3] * 6)
        try:
            fa.Simulation(problem, INSA, execution=fa.Execution(mesh=4, placement="home"))
        except ValueError as error:
            assert "6 clients are not divisible by 4 devices" in str(error) and "placement='dealt'" in str(error)
        else:
            raise AssertionError
        sim = fa.Simulation(problem, INSA, execution=fa.Execution(mesh=4))
        assert sim.resolved()["placement"] == "dealt"
        assert "dealt" in repr(fa.estimate(problem, INSA, execution=fa.Execution(mesh=4)))
    """)


def test_on_one_device_there_is_nothing_to_choose():
    in_a_process("""
        problem, *_ = least_squares([3] * 6)
        assert fa.Simulation(problem, INSA, execution=fa.Execution(mesh=1)).resolved()["placement"] is None
    """)


def test_device_efficiency_is_the_mean_over_the_most():
    """Two clients of one size: on one home of four, on two homes; dealt, each has its own device."""
    in_a_process("""
        problem, *_ = least_squares([8] * 8)
        def efficiency(cohort, placement):
            execution = fa.Execution(mesh=4, placement=placement)
            return fa.simulate(problem, fa.fedavg(LOCAL), 1, participation=[cohort], execution=execution,
                               progress=False).history["device_efficiency"][1]
        assert efficiency([0, 1], "home") == 1 / 4
        assert efficiency([0, 7], "home") == 2 / 4
        assert efficiency([0, 1], "dealt") == 2 / 4
        assert efficiency([0, 2, 4, 6], "home") == 1
    """)


def test_parameters_without_entries_travel():
    in_a_process("""
        import jax.numpy as jnp
        problem = fa.Problem(
            init=lambda key: {"w": jnp.zeros(5), "none": jnp.zeros(0)},
            loss=lambda p, b: (b["x"] @ p["w"] - b["y"]) ** 2, data=least_squares([3] * 4)[0].data,
        )
        for placement in ("home", "dealt"):
            result = fa.simulate(problem, INSA, 2, execution=fa.Execution(mesh=2, placement=placement), progress=False)
            assert result.state.duals["none"].shape == (4, 0)
    """)
