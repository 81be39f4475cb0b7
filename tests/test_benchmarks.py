"""The comparison with other simulators runs, and tells which of them it did not."""

import math
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_peers_prints_its_table_without_any_peer():
    size = "--algorithms fedavg --models logistic --turns 1 --rounds 1 --clients 3 --cohort 2 --rows 10,30 --batch 10"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "peers.py", *size.split()],
        env=os.environ | {"PYTHONPATH": path, "JAX_ENABLE_X64": "0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in ran.stdout.splitlines() if line.startswith("|")
    ]
    table = {name: cells for name, *cells in rows[2:]}
    assert float(table["fedjax_admm"][0]) > 0
    assert table["fedjax_admm"][2] == "1.00"  # each row of a batch has one gradient
    assert 0 < float(table["fedjax_admm"][3]) < 2 * math.log(10)  # the loss
    assert {table[name][0] for name in ("fedjax", "pfl", "Flower", "PyTorch loop")} == {"not run"}
