"""Small causal language models written in Relax, one attention each, spelt as exporters do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from relax_models import const, make, nn, op
from tvm import relax

from graphc.ir import Dim, Model

VOCABULARY, HIDDEN, HEADS, SIZE, ROWS = 29, 16, 4, 8, 64
FAR = np.finfo(np.float32).min

Bias = Callable[[Any, Any, "dict[str, Any]"], Any]
"""(scores [1, h, s, s], s, weights) -> masked scores."""


@dataclass(frozen=True)
class Toy:
    """`mask` reads and changes the scores; `groups` key heads; `mix` comes before the head."""

    mask: Bias
    groups: int = HEADS
    softcap: float = 0.0
    sinks: bool = False
    mix: Callable[[Any], Any] | None = None


def _positions(s: Any) -> tuple[Any, Any]:
    at = op.arange(0, s, 1, "int64")
    return op.reshape(at, (1, 1, s, 1)), op.reshape(at, (1, 1, 1, s))


def by_comparison(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """where(key <= query, scores, -inf)"""
    query, key = _positions(s)
    return op.where(op.less_equal(key, query), scores, const(-np.inf, "float32"))


def by_table(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """A stored triangle, cut to the length, as old exports have it, with -1e4 for -inf."""
    part = op.strided_slice(weights["triangle"], [2, 3], [0, 0], [s, s], assume_inbound=True)
    return op.where(part, scores, const(-1e4, "float32"))


def by_tril(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """Scores plus (1 - tril(1)) * min"""
    ones = op.full((s, s), const(1.0, "float32"), "float32")
    hidden = op.multiply(op.subtract(const(1.0, "float32"), op.tril(ones)), const(FAR, "float32"))
    return op.add(scores, op.reshape(hidden, (1, 1, s, s)))


def windowed(width: int) -> Bias:
    """key <= query and key > query - width"""

    def mask(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
        query, key = _positions(s)
        near = op.greater(key, op.subtract(query, const(width, "int64")))
        seen = op.logical_and(op.less_equal(key, query), near)
        return op.add(scores, op.where(seen, const(0.0, "float32"), const(FAR, "float32")))

    return mask


def alibi(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """Slopes times the keys' positions, before the mask."""
    _, key = _positions(s)
    return by_comparison(op.add(scores, op.multiply(weights["slopes"], op.astype(key, "float32"))),
                         s, weights)  # fmt: skip


def unmasked(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """Everyone sees everyone."""
    return scores


def peeking(scores: Any, s: Any, weights: dict[str, Any]) -> Any:
    """Every token sees the next one too."""
    query, key = _positions(s)
    seen = op.less_equal(key, op.add(query, const(1, "int64")))
    return op.where(seen, scores, const(-np.inf, "float32"))


def build(toy: Toy, seed: int = 0) -> Model:
    """The model of input_ids [1, s]."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    slopes = 2.0 ** -np.arange(1, HEADS + 1, dtype=np.float32)
    params = {
        "embedding": normal(VOCABULARY, HIDDEN) * 4,
        "places": normal(ROWS, HIDDEN) * 8,
        "wq": normal(HIDDEN, HEADS * SIZE),
        "wk": normal(HIDDEN, toy.groups * SIZE),
        "wv": normal(HIDDEN, toy.groups * SIZE),
        "wo": normal(HEADS * SIZE, HIDDEN),
        "head": normal(HIDDEN, VOCABULARY),
        "slopes": slopes.reshape(1, HEADS, 1, 1),
        "triangle": np.tril(np.ones((ROWS, ROWS), bool))[None, None],
        "sink": normal(HEADS).reshape(1, HEADS, 1, 1),
    }

    def body(dims: dict[str, Any], ids: Any, *values: Any) -> Any:
        s, w = dims["s"], dict(zip(params, values, strict=True))
        places = op.strided_slice(w["places"], [0], [0], [s], assume_inbound=True)
        x = op.add(op.take(w["embedding"], ids, axis=0), op.reshape(places, (1, s, HIDDEN)))

        def heads(weight: str, count: int) -> Any:
            flat = op.reshape(op.matmul(x, w[weight]), (1, s, count, SIZE))
            turned = op.permute_dims(flat, [0, 2, 1, 3])
            if count == HEADS:
                return turned
            wide = op.reshape(turned, (1, count, 1, s, SIZE))
            wide = op.broadcast_to(wide, (1, count, HEADS // count, s, SIZE))
            return op.reshape(wide, (1, HEADS, s, SIZE))

        q, k, v = heads("wq", HEADS), heads("wk", toy.groups), heads("wv", toy.groups)
        scores = op.matmul(q, op.permute_dims(k, [0, 1, 3, 2]))
        scores = op.multiply(scores, const(SIZE**-0.5, "float32"))
        if toy.softcap:
            cap = const(toy.softcap, "float32")
            scores = op.multiply(op.tanh(op.divide(scores, cap)), cap)
        scores = toy.mask(scores, s, w)
        if toy.sinks:
            sink = op.broadcast_to(w["sink"], (1, HEADS, s, 1))
            weights = nn.softmax(op.concat([scores, sink], 3), -1)
            weights = op.strided_slice(weights, [3], [0], [s], assume_inbound=True)
        else:
            weights = nn.softmax(scores, -1)
        mixed = op.permute_dims(op.matmul(weights, v), [0, 2, 1, 3])
        out = op.matmul(op.reshape(mixed, (1, s, HEADS * SIZE)), w["wo"])
        out = op.add(x, out)
        return op.matmul(out if toy.mix is None else toy.mix(out), w["head"])

    model = make({"input_ids": ((1, "s"), "int64")}, params, body, [Dim("s", 1, ROWS)])
    used = {var.name for var in relax.analysis.free_vars(model.mod["main"].body)}
    assert used, "an empty model"
    return model
