"""Bad input: one clear line that names the argument, before anything is compiled."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from federations import least_squares, squared_error
from flax import linen, nnx

import fedjax_admm as fa
import fedjax_admm.runs.simulation  # imported late, it would take over what is patched here

LOCAL = fa.LocalSolver(learning_rate=0.1, max_epochs=2)
PROBLEM, XS, YS = least_squares([3, 4, 2])
FIELDS = {"x": np.zeros((4, 2)), "y": np.zeros(4)}
PARTS = [[0, 1], [2, 3]]


def data(fields=FIELDS, parts=PARTS, **kwargs):
    return fa.FederatedData.from_arrays(fields, parts, **kwargs)


def problem(**kwargs):
    return fa.Problem(**dict(init=lambda key: jnp.zeros(2), loss=squared_error, data=data()) | kwargs)


def clients(each):
    return fa.FederatedData.from_clients(each)


def labelled(labels, eval_data=FIELDS):
    task = fa.problems.classification(fa.models.logistic(2, 3))
    return fa.Problem(**task, data=data(FIELDS | {"y": np.array(labels)}), eval_data=eval_data)


def simulate(algorithm=None, rounds=1, **kwargs):
    return fa.simulate(PROBLEM, algorithm or fa.fedadmm(LOCAL), rounds=rounds, progress=False, **kwargs)


NAN_ROW = {"x": np.array([[0.0, 0], [0, 0], [np.nan, 0], [0, 0]]), "y": np.zeros(4)}
BAD = {
    "client without rows": (lambda: data(parts=[[0, 1], []]), r"parts\[1\].*no rows"),
    "row twice": (lambda: data(parts=[[0, 1, 0], [2]]), r"parts\[0\] gives row 0 twice"),
    "row out of range": (lambda: data(parts=[[0, 1], [2, 4]]), r"parts\[1\] names row 4.*0 to 3"),
    "negative row": (lambda: data(parts=[[0, 1], [-1]]), r"parts\[1\] names row -1"),
    "rows not integers": (lambda: data(parts=[[0.5]]), r"parts\[0\] must be row numbers"),
    "overlap": (lambda: data(parts=[[0, 1], [1, 2]]), "row 1 belongs to clients 0 and 1.*allow_overlap=True"),
    "list of clients": (lambda: data([np.ones((n, 2)) for n in (1, 2, 3, 4)]), r"fields\[2\] \(3, 2\) and 1 more: .*np.concatenate.*from_clients"),
    "rows as a list": (lambda: data({"x": [[1.0, 2.0], [3.0]]}), r"fields\['x'\]\[0\]\[0\].*np.asarray"),
    "words for labels": (lambda: data(FIELDS | {"y": np.array(list("abca"))}), r"fields\['y'\] must be numbers, got dtype <U1.*np.unique"),
    "words in eval_data": (lambda: problem(eval_data=FIELDS | {"y": np.array(list("abca"))}), r"eval_data\['y'\] must be numbers"),
    "clients by name": (lambda: clients({"a": np.ones(3)}), "clients must be a list .*got a dict"),
    "a client without rows": (lambda: clients([FIELDS, {"x": np.zeros((0, 2)), "y": np.zeros(0)}]), r"clients\[1\] has no rows"),
    "a client's unequal fields": (lambda: clients([FIELDS, FIELDS | {"y": np.zeros(3)}]), r"clients\[1\]\['x'\] \(4, 2\), clients\[1\]\['y'\] \(3,\)"),
    "a client's other field": (lambda: clients([FIELDS, {"x": np.zeros((4, 2))}]), r"clients\[1\] must have the fields of .*\['x'\] and \['y'\], got \['x'\]"),
    "a client's other shape": (lambda: clients([FIELDS, FIELDS | {"x": np.zeros((4, 3))}]), r"clients\[1\]\['x'\] has rows of shape \(3,\), but .*\(2,\)"),
    "a client's other dtype": (lambda: clients([FIELDS, FIELDS | {"y": np.zeros(4, int)}]), r"clients\[1\]\['y'\] has dtype int64, but .*float64"),
    "NaN of a client": (lambda: clients([FIELDS, NAN_ROW]), r"clients\[1\]\['x'\] is not finite in row 2"),
    "labels from one": (lambda: labelled([1, 2, 3, 3]), r"data\['y'\] must be whole numbers from 0 to 2, the model's 3 classes, got 3"),
    "labels between": (lambda: labelled([0, 0.5, 1, 2]), r"data\['y'\] must be whole numbers .*got 0.5"),
    "one-hot labels": (lambda: labelled(np.eye(4)), r"data\['y'\] must be class numbers .*got shape \(4, 4\).*argmax"),
    "labels of eval_data": (lambda: labelled([0, 1, 2, 2], eval_data=FIELDS | {"y": np.arange(4)}), r"eval_data\['y'\] .*got 3"),
    "accuracy without eval_data": (lambda: labelled([0, 1, 2, 2], eval_data=None), r"metrics \(accuracy\) .*accuracy=False"),
    "loss that does not fit": (lambda: problem(loss=lambda w, b: b["x"].T @ w), r"loss failed for float64\[\d\] and .*TypeError: dot_general"),
    "loss of NumPy": (lambda: problem(loss=lambda w, b: np.asarray(b["x"])[:, 0]), "loss is traced by JAX, so it must use jax.numpy"),
    "loss with an if": (lambda: problem(loss=lambda w, b: b["y"] if b["y"][0] > 0 else -b["y"]), "jnp.where instead of if"),
    "loss of one argument": (lambda: problem(loss=lambda w: w), "loss failed for .*TypeError: .*takes 1 positional argument"),
    "regularizer's field not there": (lambda: problem(init=lambda key: {"w": jnp.zeros(2)}, loss=lambda p, b: b["x"] @ p["w"], regularizer=lambda p: p["v"]), r"regularizer asks for 'v', which is not there: the parameters are \['w'\]"),
    "regularizer of nothing": (lambda: problem(regularizer=lambda w: None), "regularizer must return one number, got shape None"),
    "optimizer without a rate": (lambda: simulate(fa.fedavg(fa.LocalSolver(learning_rate=0.1, optimizer=lambda: None))), "optimizer must be a function of the learning rate"),
    "field of None": (lambda: fa.FederatedData.from_arrays({"x": np.ones(4), "y": None}, [[0]]), r"fields\['y'\] is None: give an array"),
    "no rows": (lambda: fa.FederatedData.from_arrays({"x": np.ones(0)}, [[0]]), "fields has no rows"),
    "ragged part": (lambda: fa.FederatedData.from_arrays({"x": np.ones(4)}, [[[0, 1], [2]]]), r"parts\[0\] must be row numbers"),
    "rates in words": (lambda: fa.LocalSolver(learning_rate=["0.1", "0.2"]), "learning_rate must be a number, or one per client"),
    "several references": (lambda: fa.fedadmm_in(LOCAL, reference=np.array(["server", "client"])), "reference must be 'server' or 'client', got array"),
    "field not there": (lambda: problem(loss=lambda w, b: b["X"] @ w), r"loss asks for 'X'.*fields \['x'\] and \['y'\]"),
    "metric's field not there": (lambda: problem(metrics={"m": lambda w, b: b["z"]}, eval_data=FIELDS), r"metrics\['m'\] asks for 'z'.*eval_data has"),
    "input shape": (lambda: fa.models.logistic("784"), "input_shape must be a whole number, got '784'"),
    "hidden": (lambda: fa.models.mlp(784, (20, 0)), "hidden must be at least 1, got 0"),
    "no clients": (lambda: data(parts=[]), "parts is empty"),
    "unequal fields": (lambda: data({"x": np.zeros((4, 2)), "y": np.zeros(3)}), "same number of rows"),
    "NaN in data": (lambda: data(NAN_ROW), r"fields\['x'\] is not finite in row 2"),
    "weights of wrong length": (lambda: data(weights=[1.0]), r"weights has shape \(1,\) for 2 clients"),
    "weights not positive": (lambda: data(weights=[1.0, 0.0]), "weights must be above 0, got 0 for client 1"),
    "parts a number": (lambda: data(parts=4), "parts must be a list of row numbers for each client, got 4"),
    "data no FederatedData": (lambda: problem(data=FIELDS), "data must be a fa.FederatedData, got dict.*from_arrays"),
    "loss no function": (lambda: problem(loss=3), r"loss must be a function, \(params, batch\) -> \[batch\], got 3"),
    "init no function": (lambda: problem(init=1.0), "init must be a function, key -> parameters, got 1.0"),
    "init of nothing": (lambda: problem(init=lambda: jnp.zeros(2)), "init must be a function of a key that returns arrays"),
    "regularizer a number": (lambda: problem(regularizer=0.1), "regularizer must be a function, params -> one number, got 0.1"),
    "metrics no mapping": (lambda: problem(metrics=squared_error, eval_data=FIELDS), "metrics must be name -> function"),
    "metric no function": (lambda: problem(metrics={"a": 3}, eval_data=FIELDS), r"metrics\['a'\] must be a function.*got 3"),
    "initial params a word": (lambda: simulate(initial_params="a"), "initial_params has parameters that are no array, but 'a'"),
    "optimizer of nothing": (lambda: simulate(fa.fedavg(fa.LocalSolver(0.1, optimizer=lambda rate: 3))), "optimizer must make an optax optimizer from a learning rate, but it made 3"),
    "mesh a word": (lambda: fa.Execution(mesh="all"), "mesh must be a number of devices or a jax.sharding.Mesh, got 'all'"),
    "compare a list": (lambda: fa.compare(PROBLEM, [fa.fedadmm(LOCAL)], rounds=1), "algorithms must be label -> algorithm"),
    "partition seed": (lambda: fa.partition.iid(20, 2, seed=-1), "seed must be at least 0, got -1"),
    "partition seed a word": (lambda: fa.partition.shards([0, 1], 2, 1, seed="a"), "seed must be a whole number, got 'a'"),
    "partition labels": (lambda: fa.partition.dirichlet([0, np.nan], 2, 0.5), "labels must be finite, got nan"),
    "growing tolerance": (lambda: fa.criteria.decaying_tolerance(1.0, 1.5), "factor must be at most 1, got 1.5"),
    "penalty zero": (lambda: fa.fedadmm(LOCAL, penalty=0), "penalty must be above 0, got 0"),
    "penalty negative for one": (lambda: fa.fedadmm(LOCAL, penalty=[1, -2.0]), "penalty must be above 0, got -2 for client 1"),
    "penalty not finite": (lambda: fa.fedadmm_insa(LOCAL, penalty=np.inf), "penalty must be finite, got inf"),
    "penalty a word": (lambda: fa.fedprox(LOCAL, penalty="big"), "penalty must be a number, or one per client, got 'big'"),
    "penalty a bool": (lambda: fa.fedprox(LOCAL, penalty=True), "penalty must be a number"),
    "rate zero": (lambda: fa.LocalSolver(learning_rate=0.0), "learning_rate must be above 0"),
    "rate NaN": (lambda: fa.LocalSolver(learning_rate=np.nan), "learning_rate must be finite"),
    "mu": (lambda: fa.fedadmm_insa(LOCAL, mu=1.0), "mu must be above 1, got 1"),
    "tau": (lambda: fa.penalties.residual_balancing(mu=5, tau=0.5), "tau must be above 1, got 0.5"),
    "sigma factor one": (lambda: fa.fedadmm_in(LOCAL, sigma_factor=1.0), "sigma_factor must be below 1, got 1"),
    "sigma factor zero": (lambda: fa.fedadmm_in(LOCAL, sigma_factor=0), "sigma_factor must be above 0"),
    "c": (lambda: fa.fedadmm_in(LOCAL, c=0.0), "c must be above 0"),
    "c and sigma": (lambda: fa.criteria.relative_residual(c=0.1, sigma=0.1), "one of c and sigma"),
    "neither c nor sigma": (lambda: fa.criteria.relative_residual(), "one of c and sigma"),
    "delta": (lambda: fa.fedadmm(LOCAL, delta=-0.5), "delta must be above -0.5, got -0.5"),
    "max_epochs": (lambda: fa.LocalSolver(0.1, max_epochs=0), "max_epochs must be at least 1, got 0"),
    "max_epochs a fraction": (lambda: fa.LocalSolver(0.1, max_epochs=1.5), "max_epochs must be a whole number"),
    "max_epochs beyond int32": (lambda: fa.LocalSolver(0.1, max_epochs=3 * 10**9), "max_epochs must be below 2147483648"),
    "metric called loss": (lambda: problem(metrics={"loss": squared_error}, eval_data=FIELDS), "metrics must not be called 'loss'"),
    "metric called seconds": (lambda: problem(metrics={"seconds": squared_error}, eval_data=FIELDS), "called 'seconds'"),
    "NaN in eval_data": (lambda: problem(metrics={"m": squared_error}, eval_data=NAN_ROW), r"eval_data\['x'\] is not finite in row 2"),
    "unequal eval_data": (lambda: problem(eval_data={"x": np.zeros((4, 2)), "y": np.zeros(3)}), "eval_data must be arrays with"),
    "empty eval_data": (lambda: problem(eval_data={"x": np.zeros((0, 2)), "y": np.zeros(0)}), "eval_data has no rows"),
    "integer loss": (lambda: problem(loss=lambda w, b: jnp.argmax(b["x"], -1)), "loss must return floating-point values"),
    "parts in two dimensions": (lambda: data(parts=[[[0], [1]]]), r"parts\[0\] must be row numbers.*\(2, 1\)"),
    "a rate for a solver": (lambda: fa.fedavg(0.1), "local must be an object made by fa.LocalSolver"),
    "criterion not called": (lambda: fa.fedadmm(LOCAL, criterion=fa.criteria.run_to_maximum), "criterion must be an object"),
    "rule not called": (lambda: fa.fedadmm(LOCAL, penalty_rule=fa.penalties.constant), "penalty_rule must be an object"),
    "an algorithm of many not called": (lambda: fa.compare(PROBLEM, {"a": fa.fedavg}, rounds=1), r"algorithms\['a'\] must be an object .*got fedavg: call it, fedavg\(...\)"),
    "a criterion a word": (lambda: fa.fedavg(LOCAL, criterion="exact"), r"criterion must be an object made by fa.criteria, such as fa.criteria.relative_residual\(c=0.01\), or None, got 'exact'"),
    "an exchange a word": (lambda: simulate(exchange="clip"), "exchange must be an object made by a class of yours that inherits from fa.Stage, or a list of such objects, got 'clip'"),
    "a stage not made": (lambda: simulate(exchange=fa.Stage), r"exchange must be an object .*got Stage: call it, Stage\(...\)"),
    "optax for a server": (lambda: fa.fedavg(LOCAL, server=optax.adam), r"server must be an object made by fa.ServerStep\(...\), got adam$"),
    "runs not in pairs": (lambda: fa.simulate_many(PROBLEM, 3, rounds=1), r"runs must be pairs \(algorithm, seed\), at least one, such as .*got 3"),
    "evaluate a list": (lambda: simulate(evaluate=[1]), "evaluate must be 'all', a number of rows, 'test' or None, got"),
    "participation a word": (lambda: simulate(participation="all"), "participation must be a fraction or a number of clients, .*got 'all': 1.0 selects all"),
    "participation of one list": (lambda: simulate(participation=[0, 1]), r"one list of clients per round .*got shape \(\) for round 0"),
    "participation of no round": (lambda: simulate(participation=[]), "one list of clients per round .*got no round"),
    "a flax class": (lambda: fa.models.from_flax(linen.Dense, jnp.zeros((1, 2))), r"module must be a flax module, got the class Dense: give Dense\(...\)"),
    "an nnx class": (lambda: fa.models.from_flax(nnx.Linear), r"got the class Linear: give lambda rngs: Linear\(...\)"),
    "a shape for an input": (lambda: fa.models.from_flax(linen.Dense(3), (1, 2)), r"sample_input must be an array, such as .*got \(1, 2\)"),
    "a cohort of words": (lambda: simulate(participation=[[0, 1], ["a"]]), r"participation\[1\] must be client numbers"),
    "init not finite": (
        lambda: fa.Simulation(problem(init=lambda key: jnp.full(2, jnp.nan)), fa.fedadmm(LOCAL)).init(),
        "init returned parameters that are not finite",
    ),
    "batch_size": (lambda: fa.LocalSolver(0.1, batch_size=0), "batch_size must be at least 1, got 0"),
    "an optimizer, not a factory": (lambda: fa.LocalSolver(0.1, optimizer="sgd"), "optimizer must be a factory"),
    "reference": (lambda: fa.fedadmm_in(LOCAL, reference="z"), "reference must be 'server' or 'client', got 'z'"),
    "residual": (lambda: fa.fedadmm_in(LOCAL, residual="mean"), "residual must be 'exact' or .*got 'mean'"),
    "power": (lambda: fa.criteria.summable_tolerance(0.1, power=1), "power must be above 1, got 1"),
    "squared factor": (
        lambda: fa.criteria.decaying_squared_tolerance(0.1, [0.5, 1.0]), "factor must be below 1, got 1 for client 1"
    ),
    "squared eps": (lambda: fa.criteria.decaying_squared_tolerance(-4.0), "eps must be above 0, got -4"),
    "noise factor": (lambda: fa.criteria.sampling_noise(0), "factor must be above 0, got 0"),
    "noise residual": (lambda: fa.criteria.sampling_noise(residual="mean"), "residual must be 'exact' or .*got 'mean'"),
    "noise factors of wrong length": (
        lambda: simulate(fa.fedadmm(LOCAL, criterion=fa.criteria.sampling_noise([1.0, 2.0]))),
        "criterion.factor has 2 entries for 3",
    ),
    "average": (lambda: fa.fedavg(LOCAL, average="some"), "average must be 'selected' or 'all'"),
    "unselected_penalty": (lambda: fa.fedadmm_insa(LOCAL, unselected_penalty="old"), "unselected_penalty must be"),
    "client reference without client rows": (
        lambda: fa.fedavg(LOCAL, criterion=fa.criteria.relative_residual(sigma=0.5, reference="client")),
        "reference='client' needs .* average='all'",
    ),
    "participation zero": (lambda: simulate(participation=0), "participation .*1 to 3, got 0"),
    "participation 0.0": (lambda: simulate(participation=0.0), "participation must be above 0"),
    "participation above one": (lambda: simulate(participation=1.5), "participation .*at most 1, got 1.5"),
    "participation above all": (lambda: simulate(participation=4), "participation .*1 to 3, got 4"),
    "cohort repeated": (lambda: simulate(participation=[[1, 1]]), r"participation\[0\] names client 1 twice"),
    "cohort unknown": (lambda: simulate(participation=[[0, 3]]), r"participation\[0\] names client 3.*0 to 2"),
    "too few cohorts": (lambda: simulate(rounds=2, participation=[[0, 1]]), "cohorts of 1 rounds, but rounds is 2"),
    "rounds": (lambda: simulate(rounds=0), "rounds must be at least 1"),
    "seed": (lambda: simulate(seed=-1), "seed must be at least 0"),
    "evaluate_every": (lambda: simulate(evaluate_every=0), "evaluate_every must be at least 1"),
    "lanes": (lambda: fa.Execution(lanes=0), "lanes must be at least 1"),
    "lanes a word": (lambda: fa.Execution(lanes="all"), "lanes must be a whole number or 'auto'"),
    "population": (lambda: fa.Execution(population="cloud"), "population must be 'device'"),
    "penalties of wrong length": (
        lambda: simulate(fa.fedadmm(LOCAL, penalty=[1.0, 2.0])), "penalty has 2 entries for 3 clients"
    ),
    "rates of wrong length": (
        lambda: simulate(fa.fedadmm(fa.LocalSolver(learning_rate=[0.1] * 4))), "learning_rate has 4 entries for 3"
    ),
    "c of wrong length": (lambda: simulate(fa.fedadmm_in(LOCAL, c=[0.1])), r"criterion.c has 1 entries for 3"),
    "scalar loss": (
        lambda: problem(loss=lambda w, b: jnp.mean(squared_error(w, b))), r"loss must return one value per example.*\(\)"
    ),
    "column loss": (
        lambda: problem(loss=lambda w, b: squared_error(w, b)[:, None]), r"loss must return one value.*\(3, 1\)"
    ),
    "integer parameters": (lambda: problem(init=lambda key: jnp.zeros(2, jnp.int32)), "init returns .*int32.*floating"),
    "no parameters": (lambda: problem(init=lambda key: {}), "init returns no parameters"),
    "metrics without data": (lambda: problem(metrics={"error": squared_error}), "give eval_data"),
    "scalar metric": (
        lambda: problem(metrics={"m": lambda w, b: jnp.mean(squared_error(w, b))}, eval_data=FIELDS), r"metrics\['m'\]"
    ),
    "vector regularizer": (lambda: problem(regularizer=lambda w: w), "regularizer must return one number"),
    "initial shape": (lambda: simulate(initial_params=np.zeros(4)), r"initial_params must have the shape of init's parameters, \(5,\), got \(4,\)"),
    "initial structure": (lambda: simulate(initial_params={"w": np.zeros(5)}), "initial_params must have the structure of init's"),
    "initial dtype": (lambda: simulate(initial_params=np.zeros(5, int)), "initial_params has .*int64"),
    "initial NaN": (lambda: simulate(initial_params=np.full(5, np.nan)), "initial_params is not finite"),
    "alpha": (lambda: fa.partition.dirichlet([0, 1], 1, alpha=0), "alpha must be above 0"),
    "min_size": (lambda: fa.partition.dirichlet([0, 1, 0], 2, alpha=1, min_size=2), "min_size=2 for 2 clients needs 4"),
    "too many clients": (lambda: fa.partition.iid(3, 4), "num_clients=4 is more than the 3 examples"),
    "too few shards": (lambda: fa.partition.shards(np.arange(10), 2, 2), "4 shards cannot hold 10 labels"),
    "too many shards": (lambda: fa.partition.shards([0, 1, 0], 2, 2), "4 shards do not fit 3 examples"),
    "labels not flat": (lambda: fa.partition.shards(np.zeros((3, 2)), 1), "labels must be one label per example"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_one_clear_line(name, monkeypatch):
    call, message = BAD[name]
    monkeypatch.setattr("fedjax_admm.engine.population.device_rounds", None)  # nothing may be compiled, let alone run
    monkeypatch.setattr("fedjax_admm.engine.population.init_state", None)
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cohort", "message"),
    [([0, 0], "client 0 twice"), ([5], "client 5.*0 to 2"), ([], "cohort is empty"), ([0.5], "integers")],
)
def test_a_round_checks_its_cohort(cohort, message):
    sim = fa.Simulation(PROBLEM, fa.fedadmm(LOCAL))
    state = sim.init()
    with pytest.raises(ValueError, match=message):
        sim.round(state, cohort)


def test_names_that_are_not_there():
    sim = fa.Simulation(PROBLEM, fa.fedavg(LOCAL))
    with pytest.raises(AttributeError, match="no 'duals' here: this algorithm keeps nothing"):
        _ = sim.init().duals
    result = simulate()
    with pytest.raises(KeyError, match="no column 'los': there are round, loss"):
        result.history["los"]
    with pytest.raises(KeyError, match="no field 'epoch'"):
        result.solves["epoch"]


def test_numbers_that_single_precision_cannot_hold():
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=r"fields\['x'\] is not finite in row 1 as float32"):
            data({"x": np.array([0.0, 1e300, 0, 0])})
        with pytest.raises(ValueError, match=r"fields\['x'\] is not finite in row 3 as int32"):
            data({"x": np.array([0, 1, 2, 2**40])})


@pytest.mark.parametrize("participation", [np.int64(2), jnp.int32(2), np.float32(0.67), 2])
def test_forms_of_participation(participation):
    assert fa.Simulation(PROBLEM, fa.fedadmm(LOCAL), participation=participation).cohorts.size == 2


@pytest.mark.parametrize("value", [1e-60, 1e40, [1.0, 1e-60]])
def test_arguments_that_single_precision_cannot_hold(value):
    fa.fedadmm(LOCAL, penalty=value)  # in double precision it can be
    with (
        jax.enable_x64(False),
        pytest.raises(ValueError, match="penalty must be a number that single precision can hold"),
    ):
        fa.fedadmm(LOCAL, penalty=value)


def test_metrics_may_be_none_and_a_loss_over_features_is_found_out():
    assert problem(metrics=None).metrics == ()
    # As many values as features, also where the parameters are as many as the rows that the loss is tried on.
    fields = {"x": np.zeros((4, 3)), "y": np.zeros(4)}
    with pytest.raises(ValueError, match="one value per example"):
        problem(init=lambda key: jnp.zeros(3), loss=lambda w, batch: w * batch["x"].sum(), data=data(fields))
