"""Client-steps per second of the paper's networks inside the loop, against PyTorch and against `lax.conv`.

    python benchmarks/local_step.py --torch-python /path/to/python/with/torch

A client-step is one minibatch step of one client: gather a batch of uint8 images by row, gradient, update; here
in a round of FedADMM by the engine itself, its shuffle, masks, dual and penalty terms included. Each contestant is
a process of its own (thread pools in one process contend) and they take turns, one running while the others wait;
reported is each one's best turn. PyTorch runs eagerly with a thread per core and its SGD optimizer, channels last;
where its interpreter has no torch that row is left out. `lax.conv` is the same network in the same loop with
`lax.conv_general_dilated`. The fraction of sgemm counts the multiplications of the definition, not those that an
implementation adds.

Bar, for the CNN at batch 50: not slower than PyTorch (1.3 times as fast is the goal), and 15 times as fast as
`lax.conv`.

Measured on two otherwise idle cores, `--models cnn --turns 12`: the CNN 1.20 times as fast as PyTorch in one lane
(12.1 ms a client-step against 14.6) and 1.27 times in two (11.5 ms), 36 and 38 % of sgemm, 19 and 20 times as fast as
`lax.conv`. Of ResNet-20 `docs/results/speed.md` says how fast it is, and where its time goes.

What was tried for the CNN, in ms a client-step of one lane. The machine's speed changed between the tables, which
are therefore not comparable with each other (PyTorch beside the first: 18.8 to 21, beside the second: 23.6 to 28).

| two cores | ms |
|---|---|
| patches of 25 slices, product, `jnp.max` over a reshape | 23.1 |
| the same, patches as 5 + 5 slices | 22.6 |
| the same, maximum of four slices | 21.4 |
| the same, gradient of the maximum by comparison | 16.2 |
| convolution's input gradient as a convolution of the padded cotangent | 33 |
| both convolutions' pooling windows as rows of the product (`conv2d_max_pool2`) | 12.8 |

| one core | ms |
|---|---|
| as the last row | 21.4 to 24.3 |
| weight gradients written untransposed (`products.matmul`) | 22.0 |
| and pixels in 2 x 2 blocks, a barrier behind the patches' gradient | 18.5 to 19.1 |
| the same, second convolution by plain patches | 23.9 |

Without effect after that: a barrier before the patches or before the maximum's gradient, the position of the maximum
kept from the forward pass, the weight gradient from a transposed cotangent. Half of the time is then in the second
convolution's three products, which run at 140 GFLOP/s of the core's 156; what is left is that they are 1.44 times
the multiplications of the definition (fewer would need Winograd's transform, not tried because of its rounding), and
copies.
"""

import argparse
import json
import os
import subprocess
import sys
import time

CLASSES, ROWS = 10, 1000
SHAPES = {"cnn": (28, 28, 1), "resnet20": (32, 32, 3)}


def multiplications(model: str) -> int:
    """Floating-point operations of one example's gradient: two a multiply-add, forward, weights, inputs."""
    if model == "cnn":
        first, others = 24 * 24 * 25 * 32, 8 * 8 * 800 * 64 + 1024 * 512 + 512 * CLASSES
    else:
        first = 32 * 32 * 27 * 16
        others = 6 * 32**2 * 9 * 16**2 + 64 * CLASSES
        for size, channels in ((16, 32), (8, 64)):
            others += size**2 * 9 * channels * (channels // 2 + 5 * channels)
    return 2 * (2 * first + 3 * others)  # the images need no gradient


def jax_worker(model: str, batch: int, lanes: int, conv: str, steps: int, dtype: str | None = None):
    """A function that runs one round of FedADMM: as many clients as lanes, an epoch of `steps` steps each."""
    import jax
    import numpy as np

    import fedjax_admm as fa
    from fedjax_admm import models, problems

    if conv == "lax":
        use_lax_conv()
    network = {"cnn": models.cnn, "resnet20": models.resnet20}[model](dtype=dtype)
    rng = np.random.default_rng(0)
    rows = lanes * steps * batch
    fields = {
        "x": rng.integers(256, size=(rows, *SHAPES[model]), dtype=np.uint8),
        "y": rng.integers(CLASSES, size=rows, dtype=np.int32),
    }
    data = fa.FederatedData.from_arrays(fields, np.split(np.arange(rows), lanes))
    task = problems.classification(network)
    problem = fa.Problem(init=task["init"], loss=task["loss"], data=data)
    local = fa.LocalSolver(learning_rate=0.001, batch_size=batch, max_epochs=1)
    sim = fa.Simulation(problem, fa.fedadmm(local, penalty=0.1), execution=fa.Execution(lanes=lanes))
    state = sim.init()

    def run():
        nonlocal state
        state, _ = sim.round(state)
        jax.block_until_ready(state)

    return run


def use_lax_conv() -> None:
    """Put XLA's convolution in the place of the models' own, for comparison."""
    from jax import lax

    from fedjax_admm.models import layers, pooling

    def conv(x, kernel, strides=(1, 1), padding="VALID", dtype=None):
        dimensions = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=dimensions)

    layers.conv2d = conv
    layers.conv2d_max_pool2 = lambda x, kernel, padding, dtype: pooling.max_pool2(conv(x, kernel, padding=padding))


def sgemm_worker(size: int = 2048):
    """A function that multiplies two matrices."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    return lambda: jax.block_until_ready(product(matrix, matrix))


def torch_worker(model: str, batch: int, steps: int):
    """As `jax_worker`, one client, in PyTorch; images with the channels last, its faster layout."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norms = nn.ModuleList([nn.GroupNorm(1, outputs), nn.GroupNorm(1, outputs)])
            self.stride, self.extra = stride, (outputs - inputs) // 2

        def forward(self, x):
            y = self.norms[1](self.second(functional.relu(self.norms[0](self.first(x)))))
            if self.stride > 1:
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
            return functional.relu(x + y)

    if model == "cnn":
        layers = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU()]
        layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, CLASSES)]
        mean, std = [0.1307], [0.3081]
    else:
        layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(1, 16), nn.ReLU()]
        for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
            layers.append(Block(inputs, outputs, 1 if inputs == outputs else 2))
            layers += [Block(outputs, outputs, 1), Block(outputs, outputs, 1)]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
        mean, std = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
    network = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    height, width, channels = SHAPES[model]
    images = torch.randint(0, 256, (ROWS, channels, height, width), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (ROWS,))
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (mean, std))

    def run():
        for i in range(steps):
            rows = (torch.arange(batch) * 7 + i * batch) % ROWS
            optimizer.zero_grad()
            outputs = network((images[rows].float() / 255 - mean) / std)
            functional.cross_entropy(outputs, labels[rows]).backward()
            optimizer.step()

    return run


def serve(spec: dict) -> None:
    """A contestant's process: says how it came up, then for every line that it reads runs and says how long."""
    kind, clock = spec.pop("kind"), spec.pop("clock")
    try:
        run = {"jax": jax_worker, "torch": torch_worker, "sgemm": sgemm_worker}[kind](**spec)
        run()
        print("ready", flush=True)
    except ModuleNotFoundError as error:
        print(f"no {error.name}", flush=True)
        return
    clock = getattr(time, clock)
    for _ in sys.stdin:
        start = clock()
        run()
        print(clock() - start, flush=True)


def compete(contestants: dict[str, tuple[str, dict]], turns: int, clock: str) -> dict[str, float]:
    """Seconds of each contestant's best turn; contestants that cannot run are named and left out, and those that
    take over 20 seconds have one turn.

    clock: "perf_counter", or "process_time" for the time that the contestant's threads ran.
    """
    processes = {}
    for name, (python, spec) in contestants.items():
        command = [python, __file__, "--serve", json.dumps(spec | {"clock": clock})]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        state = process.stdout.readline().strip()
        if state == "ready":
            processes[name] = process
        else:
            print(f"{name}: left out ({state or 'it failed'}; interpreter {python})")
    best = dict.fromkeys(processes, float("inf"))
    for _ in range(turns):
        for name, process in processes.items():
            if 20.0 < best[name] < float("inf"):
                continue  # `lax.conv` in ResNet-20 takes minutes
            process.stdin.write("go\n")
            process.stdin.flush()
            best[name] = min(best[name], float(process.stdout.readline()))
    for process in processes.values():
        process.stdin.close()
        process.wait()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cnn,resnet20")
    parser.add_argument("--batch", type=int, help="default: 50 for the CNN, 500 for ResNet-20, as in the paper")
    parser.add_argument("--lanes", default="1,2")
    parser.add_argument("--dtypes", default="float32", help="float32,bfloat16 compares the two")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument(
        "--cpu-time", action="store_true", help="of all threads; for one core of a machine that others use"
    )
    parser.add_argument("--no-lax", action="store_true", help="leave out lax.conv, which takes minutes in ResNet-20")
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(json.loads(arguments.serve))

    for model in arguments.models.split(","):
        batch = arguments.batch or {"cnn": 50, "resnet20": 500}[model]
        steps, steps_lax = (20, 2) if model == "cnn" else (2, 1)
        shared = {"model": model, "batch": batch}
        contestants = {"sgemm": (sys.executable, {"kind": "sgemm", "size": 2048})}
        contestants["PyTorch"] = (arguments.torch_python, {"kind": "torch", "steps": steps, **shared})
        for dtype in arguments.dtypes.split(","):
            for lanes in map(int, arguments.lanes.split(",")):
                spec = {"kind": "jax", "lanes": lanes, "conv": "products", "steps": steps, "dtype": dtype, **shared}
                contestants[f"lanes={lanes}, {dtype}"] = (sys.executable, spec)
        spec = {"kind": "jax", "lanes": 1, "conv": "lax", "steps": steps_lax, **shared}
        if not arguments.no_lax:
            contestants["lanes=1, lax.conv"] = (sys.executable, spec)
        best = compete(contestants, arguments.turns, "process_time" if arguments.cpu_time else "perf_counter")

        rate = 2 * 2048**3 / best.pop("sgemm")
        seconds = {
            name: value / contestants[name][1]["steps"] / contestants[name][1].get("lanes", 1)
            for name, value in best.items()
        }
        clock = "CPU time" if arguments.cpu_time else "wall time"
        print(f"\n{model}, batch {batch}, {clock}; sgemm {rate / 1e9:.0f} GFLOP/s; best of {arguments.turns} turns")
        print("| contestant | ms a client-step | client-steps/s | of sgemm | times PyTorch | times lax.conv |")
        print("|---|---|---|---|---|---|")
        for name, value in seconds.items():
            fraction = multiplications(model) * batch / value / rate
            ratios = [
                f"{seconds[other] / value:.2f}" if other in seconds else "-"
                for other in ("PyTorch", "lanes=1, lax.conv")
            ]
            print(f"| {name} | {value * 1e3:.1f} | {1 / value:.1f} | {fraction:.0%} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    main()
