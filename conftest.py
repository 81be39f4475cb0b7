"""Names that every docstring's example may use."""

import pytest


@pytest.fixture(autouse=True)
def names_for_examples(doctest_namespace):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import linen, nnx

    import fedjax_admm as fa

    doctest_namespace.update(fa=fa, jax=jax, jnp=jnp, np=np, linen=linen, nnx=nnx)
