"""The same federated work in fedjax_admm, in other simulators and in a plain PyTorch loop.

    python benchmarks/peers.py --fedjax-python PYTHON --pfl-python PYTHON --flower-python PYTHON --torch-python PYTHON

FedAvg in fedjax_admm, google/fedjax, pfl, Flower and PyTorch, and FedADMM-InSa with the exact criterion in fedjax_admm
and in PyTorch, for logistic regression (784 -> 10) and the paper's CNN (582,026 parameters) on uint8 images of MNIST's
shape that are drawn from a seed. Each peer has an interpreter of its own; one that is not given is "not run".
`benchmarks/peers/work.py` says what the work is, `benchmarks/peers/run_*.py` how each peer does it.

The unit is a client-step, one minibatch gradient step of one client. Its time has everything in it that a round costs:
drawing and copying the batch, the criterion's own gradients, aggregation, messages. Every peer is a process of its own
(thread pools in one process contend) and does a round to warm up, compile and start its workers, which is not counted.
Then they take turns of some rounds, one working while the others wait; reported is each one's best turn, over its own
count of steps. PyTorch and pfl have turns with all cores and turns with one thread, and keep the better; Flower has
one process a core, and its turns when the others have gone, because Ray is never quite idle.

All start from the same parameters and, but for Flower, which draws its own, have the same cohorts. The column of losses
is over all data after the last turn, computed from each one's parameters by NumPy: equal but for the order of the
batches. With `--check` there is one batch a client, and all take part in FedAvg, so that nothing is random: the
losses must agree to rounding, and the times mean nothing.

Bars, on a quiet machine: logistic regression 5 times as fast as fedjax and 15 times as fast as pfl; the CNN 3 times as
fast as fedjax and not slower than pfl; InSa on the CNN 3 times as fast as the PyTorch loop.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "peers"
OURS, TORCH = "fedjax_admm", "PyTorch loop"
SCRIPTS = {OURS: "fedjax_admm", "fedjax": "fedjax", "pfl": "pfl", "Flower": "flower", TORCH: "torch"}
ALONE = {"Flower"}  # Ray's waiting processes take a tenth of a core: it has its turns when the others have gone
PEERS = {"fedavg": list(SCRIPTS), "insa": [OURS, TORCH]}
TITLES = {"fedavg": "FedAvg", "insa": "FedADMM-InSa", "logistic": "logistic regression", "cnn": "CNN"}
BARS = {  # (algorithm, model) -> the peer's time over ours, at least
    ("fedavg", "logistic"): {"fedjax": 5.0, "pfl": 15.0},
    ("fedavg", "cnn"): {"fedjax": 3.0, "pfl": 1.0},
    ("insa", "cnn"): {TORCH: 3.0},
}
SAME_LOSS = 1e-5  # relative, for `--check`
CHECK = {  # InSa with clients that are not selected, and a c with which the criterion ends solves early
    "fedavg": {"clients": 4, "cohort": 4, "epochs": 5},
    "insa": {"clients": 4, "cohort": 2, "epochs": 5, "c": 10.0},
}


class Contestant:
    """A peer's process; `trouble` says why there is none, or why it failed."""

    def __init__(self, name: str, python: str | None, work: dict) -> None:
        self.name, self.best, self.loss, self.versions, self.trouble = name, None, None, "", "not run"
        if python is None:
            return
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [python, str(FOLDER / f"run_{SCRIPTS[name]}.py"), json.dumps(work)]
        # Packages of this interpreter are not the peers'.
        variables = {k: v for k, v in os.environ.items() if name == OURS or k != "PYTHONPATH"}
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True)
        self._process = subprocess.Popen(command, env=variables, **pipes)
        self.trouble = ""
        self.versions = self._answer().get("versions", "")

    def turn(self) -> None:
        """One turn, if it can."""
        if answer := self._ask("turn"):
            pace = (answer["seconds"] / answer["steps"], answer["gradients"] / answer["steps"])
            self.best = min(self.best or pace, pace)

    def finish(self) -> None:
        self.loss = self._ask("loss").get("loss")
        if self.trouble != "not run":
            self._process.stdin.close()
            self._process.wait()
            self._log.close()

    def _ask(self, question: str) -> dict:
        if self.trouble:
            return {}
        with contextlib.suppress(BrokenPipeError):  # it has failed: its answer is missing too
            print(question, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        self.trouble = f"failed: {lines[-1] if lines else 'without a word'}"
        print(f"\n{self.name} failed; the end of what it said:\n" + "\n".join(lines[-20:]), file=sys.stderr)
        return {}


def compete(work: dict, interpreters: dict[str, str | None], turns: int) -> dict[str, Contestant]:
    finished = {}
    together = [name for name in PEERS[work["algorithm"]] if name not in ALONE]
    for names in (together, *([name] for name in PEERS[work["algorithm"]] if name in ALONE)):
        contestants = {name: Contestant(name, interpreters[name], work) for name in names}
        for _ in range(turns):
            for contestant in contestants.values():
                contestant.turn()
        for contestant in contestants.values():
            contestant.finish()
        finished |= contestants
    return finished


def report(work: dict, contestants: dict[str, Contestant], turns: int) -> None:
    algorithm, model, ours = work["algorithm"], work["model"], contestants[OURS]
    print(
        f"\n{TITLES[algorithm]}, {TITLES[model]}: {work['cohort']} of {work['clients']} clients a round, "
        f"{work['least_rows']} to {work['most_rows']} rows, batch {work['batch']}, {work['epochs']} local epoch(s); "
        f"best of {turns} turns of {work['rounds']} round(s)"
    )
    print(f"| peer | ms a client-step | times {OURS} | gradients a step | loss at the end | versions |")
    print("|---|---|---|---|---|---|")
    for contestant in contestants.values():
        if contestant.trouble or contestant.best is None:
            print(f"| {contestant.name} | {contestant.trouble or '-'} | - | - | - | {contestant.versions} |")
            continue
        seconds, gradients = contestant.best
        ratio = f"{seconds / ours.best[0]:.2f}" if ours.best else "-"
        numbers = [f"{seconds * 1e3:.3f}", ratio, f"{gradients / work['batch']:.2f}", f"{contestant.loss:.6f}"]
        print(f"| {' | '.join([contestant.name, *numbers, contestant.versions])} |")


def report_bars(work: dict, contestants: dict[str, Contestant]) -> None:
    ours = contestants[OURS]
    for name, bar in BARS.get((work["algorithm"], work["model"]), {}).items():
        if ours.best and contestants[name].best:
            ratio = contestants[name].best[0] / ours.best[0]
            print(f"bar: {bar:g} x {name}, here {ratio:.2f}: {'met' if ratio >= bar else 'NOT met'}")


def check(contestants: dict[str, Contestant]) -> bool:
    """Whether those that ran have the same loss."""
    losses = {name: contestant.loss for name, contestant in contestants.items() if contestant.loss is not None}
    same = max(losses.values()) - min(losses.values()) <= SAME_LOSS * max(losses.values())
    print(f"check: the losses of {', '.join(losses)} {'agree' if same else 'DO NOT AGREE'}")
    return same and not any(contestant.trouble.startswith("failed") for contestant in contestants.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, script in SCRIPTS.items():
        if name != OURS:
            parser.add_argument(f"--{script}-python", metavar="PYTHON", help=f"an interpreter for {name}")
    parser.add_argument("--algorithms", default="fedavg,insa")
    parser.add_argument("--models", default="logistic,cnn")
    parser.add_argument("--turns", type=int, help="default: 10, with --check 1")
    parser.add_argument("--rounds", type=int, help="of a turn; default: 20 of logistic regression, 2 else")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=10, help="clients of a round")
    parser.add_argument("--rows", default="100,600", help="least and most rows of a client")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--epochs", type=int, help="default: 1 of FedAvg, at most 2 of FedADMM-InSa")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--penalty", type=float, default=0.1)
    parser.add_argument("--check", action="store_true", help="a small size in which the losses must agree")
    given = parser.parse_args()

    turns = given.turns or (1 if given.check else 10)
    interpreters = {name: getattr(given, f"{script}_python", sys.executable) for name, script in SCRIPTS.items()}
    least, most = map(int, given.rows.split(","))
    shared = {"clients": given.clients, "cohort": given.cohort, "least_rows": least, "most_rows": most}
    shared |= {"batch": given.batch, "learning_rate": given.learning_rate, "penalty": given.penalty}
    good = True
    for algorithm in given.algorithms.split(","):
        for model in given.models.split(","):
            rounds = given.rounds or (20 if model == "logistic" and not given.check else 2)
            epochs = given.epochs or {"fedavg": 1, "insa": 2}[algorithm]
            work = {"algorithm": algorithm, "model": model, "rounds": rounds, "epochs": epochs} | shared
            if given.check:
                work |= CHECK[algorithm] | {"least_rows": given.batch, "most_rows": given.batch}
            contestants = compete(work, interpreters, turns)
            report(work, contestants, turns)
            if given.check:
                good &= check(contestants)
            else:
                report_bars(work, contestants)
                good &= contestants[OURS].best is not None
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
