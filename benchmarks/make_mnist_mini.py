"""Makes `fedjax_admm/data/mnist_mini.npz` from the MNIST that TFDS prepared (`fedjax_admm/data/mnist_mini.md`).

    python benchmarks/make_mnist_mini.py --data-dir ~/tensorflow_datasets

No random numbers: of each class, the first 500 images of the training split and the first 100 of the test
split, in the order in which TFDS stores them (it has shuffled them), which the result keeps. The same input
gives the same bytes wherever zlib is the same version, and the same arrays everywhere.
"""

import argparse
import hashlib
from pathlib import Path

import numpy as np

from fedjax_admm.data import sources

TARGET = Path(sources.__file__).with_name("mnist_mini.npz")


def first_of_each_class(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the sorted positions of the first `count` examples of every class in `labels`, [N]."""
    classes = np.unique(labels)
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in classes]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of TFDS's data sets (default: TFDS's own)")
    parser.add_argument("--out", type=Path, default=TARGET, help="the file to write")
    arguments = parser.parse_args()
    mnist = sources.load("mnist:3.0.1", data_dir=arguments.data_dir)
    train = first_of_each_class(mnist.train_labels, 500)
    test = first_of_each_class(mnist.test_labels, 100)
    np.savez_compressed(
        arguments.out,
        train_images=mnist.train_images[train],
        train_labels=mnist.train_labels[train],
        test_images=mnist.test_images[test],
        test_labels=mnist.test_labels[test],
        num_classes=np.array(mnist.num_classes, np.int32),
    )
    content = arguments.out.read_bytes()
    print(f"{arguments.out}: {len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
