"""Normalisation with a residual sum, and BERT's embeddings; (default domain) RMS normalisation."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, shared
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr


def _wide(dtype: str) -> str:
    return dtype if dtype == "float64" else "float32"


def _statistics(f: Formula, x: relax.Expr, epsilon: float, centre: bool) -> list[TensorValue]:
    """mean and 1 / sqrt(variance + epsilon) along the last axis; the mean of RMS is 0."""
    mean = f(op.mean, x, [-1], keepdims=True)
    centred = f(op.subtract, x, mean) if centre else x
    variance = f(op.mean, f(op.square, centred), [-1], keepdims=True)
    inverse = f(op.rsqrt, f(op.add, variance, epsilon))
    return [f.result(mean, index=1), f.result(inverse, index=2)]


def _layer(f: Formula, x: relax.Expr, gamma: Value, beta: Value | None) -> relax.Expr:
    """Layer normalisation of the last axis, in float32 at least."""
    extent = tuple(x.ty.shape.values)[-1:]
    wide = str(x.ty.dtype)
    scale = f.cast(f.fit(gamma, extent, "gamma"), wide)
    if beta is not None:
        shift = f.cast(f.fit(beta, extent, "beta"), wide)
    else:
        shift = f(op.zeros, extent, wide)
    epsilon = f.node.number("epsilon", 1e-12)
    if wide != "float64":
        return f.bind(op.nn.layer_norm(x, scale, shift, [-1], epsilon))
    # TVM's own kernel stops at float32.
    mean = f(op.mean, x, [-1], keepdims=True)
    centred = f(op.subtract, x, mean)
    variance = f(op.mean, f(op.square, centred), [-1], keepdims=True)
    normal = f(op.multiply, centred, f(op.rsqrt, f(op.add, variance, epsilon)))
    return f(op.add, f(op.multiply, normal, scale), shift)


def _skip_layer_norm(context: Context, node: Node) -> Result:
    return _skip(context, node, node.optional(3), node.optional(4), centre=True)


def _skip_rms_norm(context: Context, node: Node) -> Result:
    return _skip(context, node, None, node.optional(3), centre=False)


def _skip(
    context: Context, node: Node, beta: Value | None, bias: Value | None, centre: bool
) -> Result:
    """normalise(x + skip + bias); the sum itself is the fourth result."""
    f, value, skip, gamma = Formula(context, node), node.input(0), node.input(1), node.input(2)
    node.need_float(value)
    node.need_rank(value, 2, 3)
    node.same_dtype(*(v for v in (value, skip, gamma, beta, bias) if v is not None))
    wide = _wide(value.dtype)
    _check_skip(context, node, value, skip)
    (x, y), _ = context.broadcast(node, value, skip)
    total = f(op.add, f.cast(x, wide), f.cast(y, wide), shape=value.shape)
    if bias is not None:
        total = f(op.add, total, f.cast(f.fit(bias, value.shape[-1:], "the bias"), wide))
    epsilon = node.number("epsilon", 1e-12)
    if centre:
        normal = _layer(f, total, gamma, beta)
    else:
        scale = f.cast(f.fit(gamma, value.shape[-1:], "gamma"), wide)
        normal = f.bind(op.nn.rms_norm(total, scale, [-1], epsilon))
    statistics: list[TensorValue | None] = [None, None]
    if any(node.outputs[1:3]):
        statistics = [*_statistics(f, total, epsilon, centre)]
    results: list[TensorValue | None] = [f.result(_as(normal, value.dtype)), *statistics]
    if len(node.outputs) > 3 and node.outputs[3]:
        results.append(f.result(_as(total, value.dtype), index=3))
    return results[: len(node.outputs)]


def _as(expr: relax.Expr, dtype: str) -> relax.Expr:
    return expr if str(expr.ty.dtype) == dtype else op.astype(expr, dtype)


def _check_skip(context: Context, node: Node, value: Value, skip: Value) -> None:
    """[b, s, h], [1, s, h] or [s, h] for an input of [b, s, h]."""
    if skip.rank not in (value.rank, 2) or (skip.rank > value.rank):
        raise node.error(f"its skip input has {skip.rank} dimensions")
    shape = context.broadcast_shape(node, value.shape, skip.shape)
    if not all(context.symbols.equal(a, b) for a, b in zip(shape, value.shape, strict=True)):
        raise node.error(f"its skip input {list(skip.shape)} does not fit {list(value.shape)}")


def _simplified(context: Context, node: Node) -> Result:
    """x / sqrt(mean(x^2) + epsilon) * scale over the axes from `axis` on, in float32."""
    f, value, scale = Formula(context, node), node.input(0), node.input(1)
    node.need_float(value)
    node.need_float(scale)
    axis = node.axis(node.integer("axis", -1), value.rank)
    epsilon, wide = node.number("epsilon", 1e-5), _wide(value.dtype)
    shape = value.shape[axis:]
    gamma = f.cast(f.fit(scale, shape, "the scale"), wide)
    x = f.cast(context.expr(value), wide)
    rows = [context.symbols.product(value.shape[:axis]), context.symbols.product(shape)]
    flat = f.reshape(x, rows)
    normal = f.bind(op.nn.rms_norm(flat, f.reshape(gamma, rows[1:]), [-1], epsilon))
    result = f.result(_as(f.reshape(normal, value.shape), scale.dtype))
    if not any(node.outputs[1:]):
        return result
    variance = f(op.mean, f(op.square, flat), [-1], keepdims=True)
    inverse = f(op.rsqrt, f(op.add, variance, epsilon))
    kept = [*value.shape[:axis], *[1] * len(shape)]
    return [result, f.result(op.reshape(f.cast(inverse, "float32"), tuple(kept)), kept, index=1)]


# -- embeddings ----------------------------------------------------------------------------


def _embed(context: Context, node: Node) -> Result:
    """Layer normalisation of word + position + segment embeddings."""
    f, ids = Formula(context, node), node.input(0)
    node.need_rank(ids, 2, 2)
    words, places, segments = node.input(2), node.input(3), node.optional(4)
    tables = [table for table in (words, places, segments) if table is not None]
    node.same_dtype(*tables, node.input(5), node.input(6))
    node.need_float(words)
    for table in tables:
        node.need_rank(table, 2, 2)
        context.symbols.unify(table.shape[1], words.shape[1], f"{node.label} adds embeddings")
    batch, length = ids.shape
    width = words.shape[1]
    total = _rows(f, words, ids)
    positions = node.optional(8)
    if positions is None:
        context.symbols.require_at_most(
            length, places.shape[0], f"{node.label} has {places.shape[0]} positions"
        )
        first = f.slice(context.expr(places), 0, 0, length)
        total = f(op.add, total, f.reshape(first, (1, length, width)))
    else:
        total = f(op.add, total, _positions(f, places, positions, batch, length))
    if segments is not None and node.optional(1) is not None:
        kinds = node.input(1)
        f.fit(kinds, ids.shape, "the segments")
        total = f(op.add, total, _rows(f, segments, kinds), shape=(batch, length, width))
    dtype = words.dtype
    normal = _layer(f, f.cast(total, _wide(dtype)), node.input(5), node.input(6))
    results: list[TensorValue | None] = [f.result(_as(normal, dtype)), None]
    if len(node.outputs) > 1 and node.outputs[1]:
        results[1] = f.result(_mask_index(f, node.optional(7), batch, length), (batch,), 1)
    if len(node.outputs) > 2 and node.outputs[2]:
        results.append(f.result(op.multiply(total, f.full(1, dtype)), index=2))
    return results[: len(node.outputs)]


def _rows(f: Formula, table: Value, indices: Value) -> relax.Expr:
    safe = f.context.indices(f.node, indices, table.shape[0])
    return f(op.take, f.context.expr(table), safe, axis=0, mode="fast",
             shape=[*indices.shape, table.shape[1]])  # fmt: skip


def _positions(f: Formula, table: Value, positions: Value, batch: Expr, length: Expr) -> relax.Expr:
    f.node.need_rank(positions, 2, 2)
    rows = 1 if same(positions.shape[0], 1) else batch
    f.fit(positions, (rows, length), "the positions")
    return _rows(f, table, positions)


def _mask_index(f: Formula, mask: Value | None, batch: Expr, length: Expr) -> relax.Expr:
    """The number of ones in each row of the mask; zeros without one."""
    if mask is None:
        return op.full((batch,), f.full(0, "int32"), "int32")
    one = f(op.equal, f.fit(mask, (batch, length), "the mask"), f.full(1, mask.dtype))
    return op.sum(f.cast(one, "int32"), [1])


# -- groups --------------------------------------------------------------------------------


def _group_norm(context: Context, node: Node) -> Result:
    f, value = Formula(context, node), node.input(0)
    return f.result(_grouped(f, context.expr(value), value.shape, value.dtype))


def _skip_group_norm(context: Context, node: Node) -> Result:
    """Of x + skip + bias, which is the second result."""
    f, value, skip, bias = Formula(context, node), node.input(0), node.input(3), node.optional(4)
    node.same_dtype(value, skip)
    node.need_rank(value, 4, 4)
    if not node.integer("channels_last", 1):
        raise node.unsupported("channels_last=0 with a residual is not compiled")
    batch, _, _, channels = value.shape
    other = context.expr(skip)
    if skip.rank == 2:
        other = f.reshape(f.fit(skip, (batch, channels), "the skip input"), (batch, 1, 1, channels))
    total = f(op.add, context.expr(value), other, shape=value.shape)
    if bias is not None:
        total = f(op.add, total, f.fit(bias, (channels,), "the bias"))
    normal = f.result(_grouped(f, total, value.shape, value.dtype))
    if len(node.outputs) < 2 or not node.outputs[1]:
        return normal
    return [normal, f.result(op.multiply(total, f.full(1, value.dtype)), index=1)]


def _grouped(f: Formula, x: relax.Expr, shape: tuple[Expr, ...], dtype: str) -> relax.Expr:
    """(x - mean) / sqrt(variance + epsilon) over a group of channels; then gamma, beta, SiLU."""
    node = f.node
    gamma, beta = node.input(1), node.input(2)
    if len(shape) != 4:
        raise node.error(f"its input has {len(shape)} dimensions, it needs 4")
    last = bool(node.integer("channels_last", 1))
    batch, *others = shape
    channels = fixed(node, others[-1] if last else others[0], "the number of channels")
    groups = node.integer("groups")
    each = shared(node, channels, groups, "the number of channels")
    rest = others[:-1] if last else others[1:]
    pixels = f.context.symbols.product(list(rest))
    split = [batch, pixels, groups, each] if last else [batch, groups, each, pixels]
    axes = [1, 3] if last else [2, 3]
    wide = f.reshape(f.cast(x, _wide(dtype)), split)
    mean = f(op.mean, wide, axes, keepdims=True)
    centred = f(op.subtract, wide, mean)
    variance = f(op.mean, f(op.square, centred), axes, keepdims=True)
    inverse = f(op.rsqrt, f(op.add, variance, node.number("epsilon", 1e-5)))
    normal = f.reshape(f(op.multiply, centred, inverse), shape)
    along = (channels,) if last else (channels, 1, 1)
    kind = str(normal.ty.dtype)
    scale, shift = (
        f.reshape(f.cast(f.fit(v, (channels,), "gamma or beta"), kind), along)
        for v in (gamma, beta)
    )
    y = f(op.add, f(op.multiply, normal, scale), shift)
    if node.integer("activation") not in (0, 1):
        raise node.error(f"activation is {node.integer('activation')}, it must be 0 or 1")
    if node.integer("activation"):
        y = f(op.nn.silu, y)
    return _as(y, dtype)


_SIMPLIFIED = entry(_simplified, "axis epsilon stash_type", inputs=2, outputs=2)

TABLE: Table = {
    ("", "SimplifiedLayerNormalization", 1): _SIMPLIFIED,
    (DOMAIN, "SimplifiedLayerNormalization", 1): _SIMPLIFIED,
    (DOMAIN, "SkipLayerNormalization", 1): entry(_skip_layer_norm, "epsilon", inputs=5, outputs=4),
    (DOMAIN, "SkipSimplifiedLayerNormalization", 1): entry(
        _skip_rms_norm, "epsilon", inputs=4, outputs=4
    ),
    (DOMAIN, "EmbedLayerNormalization", 1): entry(
        _embed, "epsilon mask_index_type", inputs=9, outputs=3
    ),
    (DOMAIN, "GroupNorm", 1): entry(
        _group_norm, "activation channels_last epsilon groups", inputs=3
    ),
    (DOMAIN, "SkipGroupNorm", 1): entry(
        _skip_group_norm, "activation channels_last epsilon groups", inputs=5, outputs=2
    ),
}
