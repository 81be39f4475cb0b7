"""Models of sequences of tokens, of flax's modules: numbers [N, length] in, logits of the next [N, length, tokens]."""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from .model import Model, from_flax

__all__ = ["gru", "transformer"]


def gru(tokens: int, *, features: int = 16, hidden: int = 128) -> Model:
    """An embedding, gated recurrent units whose state is zero at the start of each row, and a linear layer.

    Args:
        tokens: How many there are, numbered from 0.
        features: The length of a token's embedding.
        hidden: The number of units.

    >>> gru(tokens=66).apply(gru(tokens=66).init(jax.random.key(0)), jnp.zeros((2, 80), jnp.uint8)).shape
    (2, 80, 66)
    """
    return from_flax(_GRU(tokens, features, hidden))


def transformer(tokens: int, *, length: int, width: int = 64, heads: int = 4, blocks: int = 2) -> Model:
    """A decoder: embeddings of tokens and positions, and blocks of causal attention and a GELU layer, each normalized
    before.

    Args:
        tokens: How many there are, numbered from 0.
        length: The most tokens of a row.
        width: The length of a token's vector.
        heads: The attention heads of each block.
        blocks: The number of blocks.

    >>> model = transformer(tokens=66, length=80)
    >>> model.apply(model.init(jax.random.key(0)), jnp.zeros((2, 80), jnp.uint8)).shape
    (2, 80, 66)
    """
    return from_flax(_Transformer(tokens, length, width, heads, blocks))


class _Recurrent(nnx.Module):
    def __init__(self, tokens: int, features: int, hidden: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(tokens, features, rngs=rngs)
        self.recurrence = nnx.RNN(nnx.GRUCell(features, hidden, rngs=rngs))
        self.logits = nnx.Linear(hidden, tokens, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        states = self.recurrence(self.embedding(x.astype(jnp.int32)), return_carry=False)
        return self.logits(cast(jax.Array, states))


class _Block(nnx.Module):
    def __init__(self, width: int, heads: int, rngs: nnx.Rngs) -> None:
        self.before_attention, self.before_layers = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.widen, self.narrow = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.widen(self.before_layers(x))))


class _Decoder(nnx.Module):
    def __init__(self, tokens: int, length: int, width: int, heads: int, blocks: int, rngs: nnx.Rngs) -> None:
        self.embedding, self.places = nnx.Embed(tokens, width, rngs=rngs), nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([_Block(width, heads, rngs) for _ in range(blocks)])
        self.normalization, self.logits = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, tokens, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x, dtype=jnp.bool_)
        x = self.embedding(x.astype(jnp.int32)) + self.places(jnp.arange(x.shape[-1]))
        for block in self.blocks:
            x = block(x, mask)
        return self.logits(self.normalization(x))


# What builds a module, equal where the arguments are: so are then the models.


@dataclasses.dataclass(frozen=True)
class _GRU:
    tokens: int
    features: int
    hidden: int

    def __call__(self, rngs: nnx.Rngs) -> nnx.Module:
        return _Recurrent(self.tokens, self.features, self.hidden, rngs)


@dataclasses.dataclass(frozen=True)
class _Transformer:
    tokens: int
    length: int
    width: int
    heads: int
    blocks: int

    def __call__(self, rngs: nnx.Rngs) -> nnx.Module:
        return _Decoder(self.tokens, self.length, self.width, self.heads, self.blocks, rngs)
