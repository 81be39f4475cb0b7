"""Whether the tests of methods notice mistakes: a sign, a missing term, a wrong divisor, one at a time.

    python benchmarks/mutations.py
    python benchmarks/mutations.py fedpd scaffold

Each mistake is made in a copy of the repository, in which the tests that are named beside it then run. "noticed" says
which test failed, "NOT NOTICED" that none did. Some twenty seconds each on an idle machine. What is looked for must
stand in the file once, so a mistake that the code has outgrown is told.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fedjax_admm", "tests")
FILES = ("conftest.py", "pyproject.toml", "README.md")


class Mutation(NamedTuple):
    """A mistake."""

    says: str
    file: str  # in algorithms/
    right: str
    wrong: str
    tests: str  # files in tests/algorithms/
    only: str = ""  # as pytest's -k


ADMM, VARIANTS, CONTROLS = "admm.py", "test_admm_variants.py", "test_scaffold_feddyn.py"
MUTATIONS = (
    Mutation(
        "prox step forgets delta",
        ADMM,
        "self.server_prox(mixed, 1 / ((1 + delta) * weight))",
        "self.server_prox(mixed, 1 / weight)",
        VARIANTS,
        "wangs or whole",
    ),
    Mutation(
        "gong divides by nothing",
        ADMM,
        'length = self.server_step / total["weight"]',
        "length = self.server_step / 1.0",
        VARIANTS,
        "gongs or share",
    ),
    Mutation(
        "gong counts with sent penalty",
        ADMM,
        'held, held_duals = counted if self.server_step is None else beta, row["duals"]',
        'held, held_duals = counted, row["duals"]',
        VARIANTS,
        "gong",
    ),
    Mutation(
        "gong weight is change",
        ADMM,
        'message["weight"] = sent_beta - held if self.server_step is None else beta',
        'message["weight"] = sent_beta if self.server_step is None else new_beta',
        VARIANTS,
        "gongs or share",
    ),
    Mutation(
        "feddr relaxes backwards",
        ADMM,
        "back = 1 - self.relaxation",
        "back = self.relaxation - 1",
        VARIANTS,
        "feddr",
    ),
    Mutation(
        "dual step missing in local rounds",
        ADMM,
        "dual_step = None if rounds is None else self.dual_step * beta",
        "dual_step = None if rounds is None else beta",
        "test_local_rounds.py",
        "papers or length",
    ),
    Mutation(
        "local rounds' duals forgotten",
        ADMM,
        'duals = row["duals"] if self.local_rounds is None else solution.linear',
        'duals = row["duals"]',
        "test_local_rounds.py",
        "",
    ),
    Mutation(
        "prox l2 without weight",
        "prox.py",
        "1 + step * self.weight",
        "1 + step",
        VARIANTS,
        "wangs",
    ),
    Mutation(
        "prox l1 without step",
        "prox.py",
        "jnp.asarray(step * self.weight)",
        "jnp.asarray(self.weight)",
        VARIANTS,
        "wangs or whole",
    ),
    Mutation(
        "fedpd center sign",
        "fedpd.py",
        "optax.tree.sub(u, trees.scale(1 / self.penalty, duals))",
        "optax.tree.add(u, trees.scale(1 / self.penalty, duals))",
        "test_fedpd.py",
        "papers",
    ),
    Mutation(
        "fedpd coin reversed",
        "fedpd.py",
        ">= jnp.asarray(self.skip)",
        "< 1 - jnp.asarray(self.skip)",
        "test_fedpd.py",
        "",
    ),
    Mutation(
        "fedpd coin probability",
        "fedpd.py",
        ">= jnp.asarray(self.skip)",
        "< jnp.asarray(self.skip)",
        "test_fedpd.py",
        "",
    ),
    Mutation(
        "fedpd centers never own",
        "fedpd.py",
        "alone = ~jnp.asarray(round.communicates)",
        "alone = jnp.zeros_like(jnp.asarray(round.communicates))",
        "test_fedpd.py",
        "",
    ),
    Mutation(
        "fedpd start at z",
        "fedpd.py",
        'start = u if self.solve_start == "client" else center',
        'start = u if self.solve_start == "client" else sent',
        "test_fedpd.py",
        "papers",
    ),
    Mutation(
        "fednova momentum factor",
        "fednova.py",
        "(steps - rho * (1 - rho**steps) / (1 - rho))",
        "(steps - (1 - rho**steps) / (1 - rho))",
        "test_fednova.py",
        "papers",
    ),
    Mutation(
        "fednova tau_eff swapped",
        "fednova.py",
        'steps if self.effective == "steps" else norm',
        'norm if self.effective == "steps" else steps',
        "test_fednova.py",
        "papers",
    ),
    Mutation(
        "fednova no tau_eff",
        "fednova.py",
        'trees.scale(mean["steps"], mean["direction"])',
        'mean["direction"]',
        "test_fednova.py",
        "papers",
    ),
    Mutation(
        "yogi sign",
        "server_optimizers.py",
        "square * jnp.sign(v - square)",
        "square * jnp.sign(square - v)",
        "test_fedopt.py",
        "reddis",
    ),
    Mutation(
        "adaptive v0",
        "server_optimizers.py",
        "first = jnp.square(jnp.asarray(tau))",
        "first = jnp.asarray(tau)",
        "test_fedopt.py",
        "reddis",
    ),
    Mutation(
        "adaptive m without 1-beta1",
        "server_optimizers.py",
        "trees.scale(1 - beta1, gradient)",
        "gradient",
        "test_fedopt.py",
        "reddis",
    ),
    Mutation(
        "tau inside root",
        "server_optimizers.py",
        "(jnp.sqrt(v) + least)",
        "jnp.sqrt(v + least)",
        "test_fedopt.py",
        "reddis",
    ),
    Mutation(
        "feddyn h sign",
        "feddyn.py",
        "h = server.dual.add(optax.tree.scale(-1, pull))",
        "h = server.dual.add(pull)",
        CONTROLS,
        "feddyn_is",
    ),
    Mutation(
        "feddyn h over selected",
        "feddyn.py",
        "h / server.weight.astype(h.dtype)",
        "h / a.astype(h.dtype)",
        CONTROLS,
        "feddyn_is",
    ),
    Mutation(
        "feddyn own penalties by one",
        "feddyn.py",
        'if self.one_for_all else received.total["penalty"]',
        "if self.one_for_all else received.weight",
        CONTROLS,
        "feddyn",
    ),
    Mutation(
        "scaffold forgets c",
        "scaffold.py",
        "change = optax.tree.sub(trees.scale(-1 / length, moved), control)",
        "change = optax.tree.sub(trees.scale(-1 / length, moved), optax.tree.zeros_like(control))",
        CONTROLS,
        "scaffold_is",
    ),
    Mutation(
        "scaffold option I forgets c",
        "scaffold.py",
        "return optax.tree.sub(solution.gradient, control)",
        "return solution.gradient",
        CONTROLS,
        "option_one",
    ),
    Mutation(
        "scaffold linear sign",
        "scaffold.py",
        'optax.tree.sub(row["controls"], sent["control"])',
        'optax.tree.sub(sent["control"], row["controls"])',
        CONTROLS,
        "scaffold_is",
    ),
    Mutation(
        "scaffold divides by epochs",
        "scaffold.py",
        "jnp.maximum(solution.steps, 1)",
        "jnp.maximum(solution.epochs, 1)",
        CONTROLS,
        "scaffold_is",
    ),
    Mutation(
        "fedavg unweighted divisor",
        "averaging.py",
        "optax.tree.scale(1 / received.weight, received.total)",
        "optax.tree.scale(1.0, received.total)",
        "test_oracle.py",
        "",
    ),
    Mutation(
        "fedavgm rate dropped",
        "fedopt.py",
        "optax.sgd, server_learning_rate, momentum=momentum",
        "optax.sgd, 1.0, momentum=momentum",
        "test_fedopt.py",
        "hsus",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mistakes whose description has one of these")
    args = parser.parse_args()
    chosen = [each for each in MUTATIONS if not args.words or any(word in each.says for word in args.words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, copy)
        outcomes = [tell(copy, mutation) for mutation in chosen]
    print(f"{outcomes.count(True)} of {len(outcomes)} noticed")
    sys.exit(not all(outcomes))


def tell(copy: Path, mutation: Mutation) -> bool:
    """Makes a mistake in the copy, runs the tests, and takes it back; whether it was noticed."""
    file = copy / "fedjax_admm" / "algorithms" / mutation.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.right) != 1:
        print(f"{mutation.says}: {mutation.right!r} stands {text.count(mutation.right)} times in {mutation.file}")
        return False
    file.write_text(text.replace(mutation.right, mutation.wrong), encoding="utf-8")
    failed = run(copy, mutation)
    file.write_text(text, encoding="utf-8")
    print(f"{'noticed' if failed else 'NOT NOTICED'}: {mutation.says}{f' ({failed})' if failed else ''}", flush=True)
    return bool(failed)


def run(copy: Path, mutation: Mutation) -> str:
    """The first test that failed, or nothing."""
    files = [str(copy / "tests" / "algorithms" / name) for name in mutation.tests.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    command += ["-k", mutation.only] if mutation.only else []
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    named = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if done.returncode != 1 or not named:
        raise RuntimeError(f"{mutation.says}: the tests did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return named[0].partition("::")[2]


if __name__ == "__main__":
    main()
