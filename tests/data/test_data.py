"""Partitions and FederatedData."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

import fedjax_admm as fa

# The digits' counts in MNIST's training set.
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def assert_partition(parts, number):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(number))


def test_iid():
    parts = fa.partition.iid(103, 10, seed=1)
    assert_partition(parts, 103)
    assert sorted(map(len, parts)) == [10] * 7 + [11] * 3
    assert not np.array_equal(parts[0], fa.partition.iid(103, 10, seed=2)[0])


def test_shards_of_mnist_have_at_most_two_labels_and_nearly_equal_sizes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), MNIST_COUNTS))
    parts = fa.partition.shards(labels, num_clients=200, labels_per_client=2, seed=0)
    assert_partition(parts, 60_000)
    assert max(len(np.unique(labels[part])) for part in parts) == 2
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() >= 295 and sizes.max() <= 305, (sizes.min(), sizes.max())


def test_straddling_shards_are_equal_and_a_few_have_three_labels():
    """facts of the authors' cut: 400 equal pieces, 9 of which straddle two labels."""
    labels = np.repeat(np.arange(10), MNIST_COUNTS)
    parts = fa.partition.shards(labels, num_clients=200, labels_per_client=2, seed=0, straddle=True)
    assert_partition(parts, 60_000)
    assert {len(part) for part in parts} == {300}
    with_three = sum(len(np.unique(labels[part])) == 3 for part in parts)
    assert 1 <= with_three <= 9


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 12),
    per_client=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_shards_always_partition_with_few_labels(counts, clients, per_client, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    if not len(counts) <= clients * per_client <= len(labels) or clients > len(labels):
        with pytest.raises(ValueError, match="shards|num_clients"):
            fa.partition.shards(labels, clients, per_client, seed)
        return
    parts = fa.partition.shards(labels, clients, per_client, seed)
    assert_partition(parts, len(labels))
    assert all(1 <= len(np.unique(labels[part])) <= per_client for part in parts)


@given(
    counts=st.lists(st.integers(1, 80), min_size=1, max_size=6),
    clients=st.integers(1, 20),
    alpha=st.sampled_from([1e-6, 0.01, 0.3, 1.0, 100.0]),
    min_size=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_dirichlet_always_ends_with_the_minimum_size(counts, clients, alpha, min_size, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    if clients * min_size > len(labels):
        with pytest.raises(ValueError, match="min_size|num_clients"):
            fa.partition.dirichlet(labels, clients, alpha, seed, min_size=min_size)
        return
    parts = fa.partition.dirichlet(labels, clients, alpha, seed, min_size=min_size)
    assert_partition(parts, len(labels))
    assert min(map(len, parts)) >= min_size


def test_dirichlet_follows_alpha():
    labels = np.repeat(np.arange(10), 1000)

    def labels_held(alpha):
        parts = fa.partition.dirichlet(labels, 20, alpha, seed=0)
        shares = np.stack([np.bincount(labels[part], minlength=10) / len(part) for part in parts])
        return np.mean(1 / np.sum(shares**2, axis=1))  # effective number of labels of a client

    assert labels_held(0.05) < 3 < labels_held(0.5) < 8 < labels_held(100)


def test_rows_of_a_client_are_what_was_given():
    fields = {"x": np.arange(20).reshape(10, 2), "nested": [np.arange(10) * 10]}
    parts = [[7, 2], [0, 9, 4]]
    data = fa.FederatedData.from_arrays(fields, parts)
    assert data.index is None and data.num_positions == 5  # in client order, rows of nobody left out
    shared = fa.FederatedData.from_arrays(fields, [[7, 2], [2, 9, 4]], allow_overlap=True)
    assert shared.index is not None
    for which, given_parts in ((data, parts), (shared, [[7, 2], [2, 9, 4]])):
        for i, part in enumerate(given_parts):
            np.testing.assert_array_equal(which.client(i)["x"], fields["x"][part])
            np.testing.assert_array_equal(which.client(i)["nested"][0], fields["nested"][0][part])
    np.testing.assert_allclose(data.weights, [0.4, 0.6])
    np.testing.assert_allclose(fa.FederatedData.from_arrays(fields, parts, weights=[1, 3]).weights, [0.25, 0.75])
    with pytest.raises(IndexError):
        data.client(2)


def test_data_of_each_client_is_that_of_the_concatenation():
    rng = np.random.default_rng(0)
    clients = [{"x": rng.normal(size=(n, 2)), "nested": [rng.integers(0, 9, n)]} for n in (3, 1, 5)]
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves), *clients)
    parts = np.split(np.arange(9), [3, 4])
    for weights in (None, [1.0, 2.0, 5.0]):
        ours = fa.FederatedData.from_clients(clients, weights=weights)
        theirs = fa.FederatedData.from_arrays(whole, parts, weights=weights)
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    np.testing.assert_array_equal(ours.client(2)["x"], clients[2]["x"])
    np.testing.assert_array_equal(fa.FederatedData.from_clients(np.ones((3, 4, 2))).sizes, [4, 4, 4])


def test_images_stay_integers():
    images = np.zeros((4, 3, 3), np.uint8)
    assert fa.FederatedData.from_arrays(images, [[0, 1], [2, 3]]).fields.dtype == np.uint8
