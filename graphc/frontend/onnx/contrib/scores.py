"""What the attention operators share: heads, rotation, masks as biases, softmax(q k^T) v.

Written so that passes recognise it as graphc.attention wherever nothing but a scale and a bias
stands between the products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.contrib.formula import Formula
from graphc.frontend.onnx.extents import scalar
from graphc.frontend.onnx.symbols import same
from graphc.ir import Expr


@dataclass(frozen=True)
class Scores:
    """How scores become weights; `sink` [heads] is one more logit for each row, without a value."""

    scale: float
    biases: Sequence[relax.Expr] = ()
    softcap: float = 0.0
    sink: relax.Expr | None = None


@dataclass(frozen=True)
class Attended:
    """[b, h, s, dv], the scaled scores with their bias, and the weights [b, h, s, t]."""

    result: relax.Expr
    scores: relax.Expr
    weights: relax.Expr


def dims(expr: relax.Expr) -> list[Expr]:
    """The shape of an expression, numbers as ints."""
    return [int(e.value) if hasattr(e, "value") else e for e in expr.ty.shape.values]


def by_heads(f: Formula, x: relax.Expr, shape: Sequence[Expr], heads: int, size: int) -> relax.Expr:
    """[b, s, heads * size] -> [b, s, heads, size]"""
    return f.reshape(x, [shape[0], shape[1], heads, size])


def turned(f: Formula, x: relax.Expr) -> relax.Expr:
    """[b, s, h, d] <-> [b, h, s, d]"""
    return f(op.permute_dims, x, [0, 2, 1, 3])


def attend(
    f: Formula, q: relax.Expr, k: relax.Expr, v: relax.Expr, rule: Scores, shape: Sequence[Expr]
) -> Attended:
    """softmax(scale * q k^T + biases) v in float32.

    q [b, h, s, d], k [b, hk, t, d], v [b, hk, t, dv]; `shape` is [b, h, s, t].
    """
    dtype = str(q.ty.dtype)
    wide = dtype if dtype == "float64" else "float32"
    q, k, v = (f.cast(x, wide) for x in (q, k, v))
    k, v = (_repeated(f, x, shape[1]) for x in (k, v))
    scores = f(op.matmul, q, f(op.permute_dims, k, [0, 1, 3, 2]), shape=shape)
    scores = f(op.multiply, scores, float(rule.scale))
    if rule.softcap:
        capped = f(op.tanh, f(op.divide, scores, float(rule.softcap)))
        scores = f(op.multiply, capped, float(rule.softcap))
    if rule.biases:
        # Among themselves first, as ONNX Runtime does: where all keys are masked it shows.
        total = f.cast(rule.biases[0], wide)
        for bias in rule.biases[1:]:
            total = _sum(f, total, f.cast(bias, wide))
        scores = f(op.add, scores, total, shape=shape)
    weights = _softmax(f, scores, rule.sink, shape)
    result = f.cast(f(op.matmul, weights, v), dtype)
    return Attended(result, scores, weights)


def _sum(f: Formula, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Of biases that are broadcast along different axes."""
    shape = [y if same(x, 1) else x for x, y in zip(dims(a), dims(b), strict=True)]
    return f(op.add, a, b, shape=shape)


def _softmax(
    f: Formula, scores: relax.Expr, sink: relax.Expr | None, shape: Sequence[Expr]
) -> relax.Expr:
    if sink is None:
        return f(op.nn.softmax, scores, -1)
    batch, heads, length, total = shape
    column = f.reshape(f.cast(sink, str(scores.ty.dtype)), [1, heads, 1, 1])
    one = [batch, heads, length, 1]
    column = f(op.broadcast_to, column, tuple(one), shape=one)
    wide = f.bind(op.concat([scores, column], axis=3), [batch, heads, length, total + 1])
    return f.slice(f(op.nn.softmax, wide, -1), 3, 0, total)


def _repeated(f: Formula, x: relax.Expr, heads: Expr) -> relax.Expr:
    """Every key head as often as query heads share it."""
    batch, groups, length, size = dims(x)
    if not isinstance(groups, int) or not isinstance(heads, int) or groups == heads:
        return x
    apart = f.reshape(x, [batch, groups, 1, length, size])
    wide = [batch, groups, heads // groups, length, size]
    return f.reshape(f(op.broadcast_to, apart, tuple(wide), shape=wide),
                     [batch, heads, length, size])  # fmt: skip


def scale_of(f: Formula, size: int) -> float:
    """The attribute, or 1 / sqrt(head size) where it is 0 or missing."""
    return f.node.number("scale", 0.0) or 1 / math.sqrt(size)


# -- positions and masks -------------------------------------------------------------------


def arange(f: Formula, extent: Expr) -> relax.Expr:
    return f(op.arange, 0, extent, 1, dtype="int64", shape=(extent,))


def number(f: Formula, extent: Expr) -> relax.Expr:
    """A dimension as an int64 scalar."""
    return f.context.expr(scalar(extent))


def places(f: Formula, start: relax.Expr | None, length: Expr) -> relax.Expr:
    """start[b] + 0 .. length - 1 as [b, length]; [1, length] without a start."""
    along = f.reshape(arange(f, length), [1, length])
    if start is None:
        return along
    return f(op.add, f.reshape(start, [*dims(start), 1]), along)


def column(f: Formula, total: Expr) -> relax.Expr:
    """The positions of the keys, [1, 1, 1, t]."""
    return f.reshape(arange(f, total), [1, 1, 1, total])


def masked(f: Formula, allowed: relax.Expr, low: float = -math.inf) -> relax.Expr:
    """0 where a key may be seen, `low` elsewhere."""
    return f(op.where, allowed, f.full(0.0, "float32"), f.full(low, "float32"))


# -- rotation ------------------------------------------------------------------------------


def rotate(
    f: Formula, x: relax.Expr, cosine: relax.Expr, sine: relax.Expr, interleaved: bool
) -> relax.Expr:
    """(x1 cos - x2 sin, x1 sin + x2 cos) of the halves, or of even and odd elements, of x.

    x [b, s, h, d]; cosine and sine [b | 1, s, 1, r / 2] turn the first r elements of each head.
    """
    batch, length, heads, size = dims(x)
    half = dims(cosine)[3]
    assert isinstance(half, int) and isinstance(size, int), (half, size)
    part = f.slice(x, 3, 0, 2 * half) if 2 * half < size else x
    if interleaved:
        pairs = f.reshape(part, [batch, length, heads, half, 2])
        x1, x2 = (f.reshape(f.slice(pairs, 4, n, n + 1), [batch, length, heads, half])
                  for n in (0, 1))  # fmt: skip
    else:
        x1, x2 = f.slice(part, 3, 0, half), f.slice(part, 3, half, 2 * half)
    shape = [batch, length, heads, half]

    def times(a: relax.Expr, b: relax.Expr) -> relax.Expr:
        return f(op.multiply, a, b, shape=shape)

    real = f(op.subtract, times(x1, cosine), times(x2, sine))
    other = f(op.add, times(x1, sine), times(x2, cosine))
    if interleaved:
        both = [f.reshape(y, [*shape, 1]) for y in (real, other)]
        result = f.reshape(f(op.concat, both, axis=4), [*shape[:3], 2 * half])
    else:
        result = f(op.concat, [real, other], axis=3)
    if 2 * half == size:
        return result
    return f(op.concat, [result, f.slice(x, 3, 2 * half, size)], axis=3)
