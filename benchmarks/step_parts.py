"""Where the time of a ResNet-20 step goes: the operations of the compiled round by kind, from XLA's own trace.

    taskset -c 0 python benchmarks/step_parts.py

One client's steps in a round of FedADMM, as in `local_step.py`. Of each operation the shortest of the steps counts, so
that the numbers mean something on a machine that does other work too.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections import defaultdict
from pathlib import Path

KINDS = {  # the first that is found in an operation's name or origin
    "convolutions, forward and input gradient": r"conv_general_dilated",
    "products, most of them kernel gradients": r"dot_general|^dot",
    "copies for kernel gradients, padding, strides": r"Conv_\d+/.*(concatenate|pad|slice|stack|transpose)",
    "norms, shortcuts and ReLU": r"GroupNorm|Block_\d+/",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--steps", type=int, default=6)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_cpu_enable_xprof_traceme=true --xla_dump_to={folder}/hlo --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        import jax
        from local_step import jax_worker

        run = jax_worker("resnet20", arguments.batch, 1, "products", arguments.steps)
        run()
        jax.profiler.start_trace(folder)
        run()
        jax.profiler.stop_trace()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        program = max(Path(folder, "hlo").glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size)
        report(trace, program.read_text(), arguments.steps)


def report(trace: Path, program: str, steps: int) -> None:
    from jax.profiler import ProfileData

    origins = {}
    for line in program.splitlines():
        if found := re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line):
            origin = re.search(r'op_name="([^"]*)"', line)
            origins.setdefault(found[1], origin[1] if origin else "")
    times = defaultdict(list)
    for plane in ProfileData.from_file(str(trace)).planes:
        for line in plane.lines:
            for event in line.events:
                times[event.name].append(event.duration_ns / 1e6)
    parts = dict.fromkeys((*KINDS, "other"), 0.0)
    for name, values in times.items():
        # Calls and loops contain other operations, which count themselves.
        if len(values) == steps and name in origins and not re.match(r"while|jit_|call|conditional", name):
            text = f"{name} {origins[name]}"
            kind = next((kind for kind, pattern in KINDS.items() if re.search(pattern, text)), "other")
            parts[kind] += min(values)
    total = sum(parts.values())
    print("| part | ms | share |\n|---|---:|---:|")
    for kind, value in parts.items():
        print(f"| {kind} | {value:.1f} | {value / total:.0%} |")
    print(f"| together | {total:.1f} | |")


if __name__ == "__main__":
    main()
