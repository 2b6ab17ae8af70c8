"""The composite operator graphc.attention: a private function that is its own definition.

    softmax(scale * q k^T + bias) v     q [b, s, h, d], k [b, t, hk, d], v [b, t, hk, dv]
                                        bias [b|1, h|1, s|1, t] float32 -> [b, s, h, dv]

Batch, position, head, feature ("BSHD") is how the projections leave their result, so there is no
transpose around the operator. `hk` divides `h`: each key head serves h / hk query heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from graphc.ir import Expr
from graphc.passes.shapes import Shapes

COMPOSITE = "graphc.attention"


@dataclass(frozen=True)
class Attention:
    """What is fixed while compiling. `guard`: rows that are all -inf give 0 instead of NaN."""

    scale: float
    guard: bool
    causal: bool = False


def attention_function(
    attention: Attention, shapes: Shapes, dtype: str, operands: Sequence[Sequence[Expr]]
) -> relax.Function:
    """The private Relax function for operands (q, k, v and perhaps bias) of these shapes.

    It has dimensions of its own: one variable for every distinct symbolic one of the operands.
    """
    names = ("bshd", "bthd", "bthv", "bhst")
    own: list[tuple[Expr, tirx.Var]] = []
    params = []
    for name, letters, shape in zip(("q", "k", "v", "bias"), names, operands, strict=False):
        dims = [_own(shapes, own, *pair) for pair in zip(shape, letters, strict=True)]
        kind = "float32" if name == "bias" else dtype
        params.append(relax.Var(name, relax.TensorType(dims, kind)))
    builder = relax.BlockBuilder()
    attrs = {
        "Composite": COMPOSITE,
        "scale": float(attention.scale),
        "causal": attention.causal,
        "guard": attention.guard,
    }
    with builder.function("attention", params, attrs=attrs, private=True):
        with builder.dataflow():
            result = builder.emit_output(_definition(builder, attention, params))
        builder.emit_func_output(result)
    return builder.get()["attention"]


def _own(shapes: Shapes, own: list[tuple[Expr, tirx.Var]], dim: Expr, letter: str) -> Expr:
    if isinstance(dim, int):
        return tirx.IntImm("int64", dim)
    for outer, inner in own:
        if shapes.same(outer, dim):
            return inner
    taken = {inner.name for _, inner in own}
    name = letter if letter not in taken else f"{letter}{len(own)}"
    own.append((dim, tirx.Var(name, "int64")))
    return own[-1][1]


def _definition(
    builder: relax.BlockBuilder, attention: Attention, params: Sequence[relax.Var]
) -> relax.Expr:
    assert not attention.causal, "a causal mask is passed as bias so far"
    op = relax.op
    q, k, v = (builder.emit(op.permute_dims(param, [0, 2, 1, 3])) for param in params[:3])
    k, v = (_for_each_query_head(builder, q, param) for param in (k, v))
    scores = builder.emit(op.matmul(q, builder.emit(op.permute_dims(k, [0, 1, 3, 2]))))
    scores = builder.emit(op.multiply(scores, relax.const(attention.scale, str(q.ty.dtype))))
    scores = _cast(builder, scores, "float32")
    if len(params) == 4:
        scores = builder.emit(op.add(scores, params[3]))
    weights = builder.emit(op.nn.softmax(scores, -1))
    if attention.guard:
        bad = builder.emit(op.isnan(weights))
        weights = builder.emit(op.where(bad, relax.const(0.0, "float32"), weights))
    weights = _cast(builder, weights, str(v.ty.dtype))
    return op.permute_dims(builder.emit(op.matmul(weights, v)), [0, 2, 1, 3])


def _cast(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    return value if str(value.ty.dtype) == dtype else builder.emit(relax.op.astype(value, dtype))


def _for_each_query_head(
    builder: relax.BlockBuilder, q: relax.Expr, keys: relax.Expr
) -> relax.Expr:
    """Repeat key heads [b, hk, t, d] for the query heads that they serve."""
    heads, (batch, groups, length, depth) = q.ty.shape.values[1], keys.ty.shape.values
    if not isinstance(heads, tirx.IntImm) or int(heads) == int(groups):
        return keys
    times = int(heads) // int(groups)
    keys = builder.emit(relax.op.reshape(keys, (batch, groups, 1, length, depth)))
    keys = builder.emit(relax.op.broadcast_to(keys, (batch, groups, times, length, depth)))
    return builder.emit(relax.op.reshape(keys, (batch, heads, length, depth)))
