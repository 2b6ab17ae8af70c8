"""GroupQueryAttention: causal attention over a key-value cache that the operator itself extends.

T = seqlens_k + 1 tokens are in the cache after the step, Q = min(T, S) of them are new
present[r] = past[r] for r < T - Q, then the new keys; query s sees keys up to T - Q + s
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib import scores
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, is_scalar, shared
from graphc.frontend.onnx.contrib.rotary import table_width, taken
from graphc.frontend.onnx.contrib.scores import Scores, attend, by_heads, turned
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.ir import Expr


@dataclass(frozen=True)
class _Lengths:
    """`total` columns of scores, `present` rows of the new cache; int64 vectors over the batch."""

    length: Expr
    total: Expr
    present: Expr
    start: relax.Expr
    count: relax.Expr
    tokens: relax.Expr


def _group_query(context: Context, node: Node) -> Result:
    f = Formula(context, node)
    _refuse(node)
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    shared(node, heads, groups, "num_heads")
    q, k, v, size = _projections(f, heads, groups)
    batch, length = scores.dims(q)[:2]
    past_key, past_value = node.optional(3), node.optional(4)
    if (past_key is None) != (past_value is None):
        raise node.error("past_key and past_value must be given together")
    q, k = _normalised(f, q, k, size)
    lengths = _lengths(f, batch, length, past_key)
    if node.integer("do_rotary", 0):
        q, k = _rotated(f, q, k, lengths, batch)
    cache = [
        _updated(f, past, new, lengths, (batch, groups, size))
        for past, new in ((past_key, k), (past_value, v))
    ]
    keys, values = (_used(f, x, lengths) for x in cache)
    shape = [batch, heads, length, lengths.total]
    rule = Scores(
        scores.scale_of(f, size), _biases(f, lengths, shape), _softcap(node), _sink(f, heads)
    )
    made = attend(f, turned(f, q), keys, values, rule, shape)
    flat = op.reshape(turned(f, made.result), (batch, length, heads * size))
    results: list[TensorValue | None] = [f.result(flat, [batch, length, heads * size])]
    for index, expr in enumerate(cache, 1):
        if index < len(node.outputs):
            wanted = bool(node.outputs[index])
            results.append(f.result(expr, index=index) if wanted else None)
    return results


def _refuse(node: Node) -> None:
    if node.integer("sliding_window_cache", 0):
        raise node.unsupported("caches that evict (sliding_window_cache) are not compiled")
    for name in ("k_quant_type", "v_quant_type"):
        if node.text(name, "NONE") != "NONE":
            raise node.unsupported("a quantised cache is not compiled: export it in floats")
    if node.optional(12) is not None or node.optional(13) is not None:
        raise node.unsupported("scales of a quantised cache are not compiled")
    if node.integer("qk_output", 0) or any(node.outputs[3:]):
        raise node.unsupported("scores as an output (qk_output) are not compiled")
    window, causal = node.integer("local_window_size", -1), node.integer("causal", 1)
    if causal not in (0, 1) or (window != -1 and (window < 1 or not causal)):
        raise node.error(f"local_window_size {window} and causal {causal} do not go together")


def _softcap(node: Node) -> float:
    cap = node.number("softcap", 0.0)
    if cap < 0:
        raise node.error(f"softcap is {cap}, it must not be negative")
    return cap


def _projections(
    f: Formula, heads: int, groups: int
) -> tuple[relax.Expr, relax.Expr, relax.Expr, int]:
    """q, k, v as [b, s, heads, size], packed beside each other or not."""
    node, query = f.node, f.node.input(0)
    node.need_float(query)
    node.need_rank(query, 3, 3)
    batch, length, hidden = query.shape
    width = fixed(node, hidden, "the hidden size")
    key, value = node.optional(1), node.optional(2)
    if (key is None) != (value is None):
        raise node.error("key and value must both be given, or both be packed in the query")
    if key is None or value is None:
        size = shared(node, width, heads + 2 * groups, "the width of packed projections")
        x = f.reshape(f.context.expr(query), [batch, length, heads + 2 * groups, size])
        q, k, v = (
            f.slice(x, 2, start, start + count)
            for start, count in ((0, heads), (heads, groups), (heads + groups, groups))
        )
        return q, k, v, size
    node.same_dtype(query, key, value)
    size = shared(node, width, heads, "the hidden size")
    q = by_heads(f, f.context.expr(query), (batch, length), heads, size)
    k, v = (
        by_heads(f, f.fit(x, (batch, length, groups * size), what), (batch, length), groups, size)
        for x, what in ((key, "the keys"), (value, "the values"))
    )
    return q, k, v, size


def _normalised(
    f: Formula, q: relax.Expr, k: relax.Expr, size: int
) -> tuple[relax.Expr, relax.Expr]:
    """RMS normalisation of each head, where weights for it are given."""
    node, weights = f.node, [f.node.optional(14), f.node.optional(15)]
    if weights == [None, None]:
        return q, k
    common = node.number("qk_norm_epsilon", 1e-6)
    made = []
    for x, weight, name in zip((q, k), weights, ("q", "k"), strict=True):
        if weight is None:
            raise node.error("q_norm_weight and k_norm_weight must be given together")
        epsilon = node.number(f"{name}_norm_epsilon", common)
        scale = f.cast(f.fit(weight, (size,), f"{name}_norm_weight"), "float32")
        normal = f.bind(op.nn.rms_norm(f.cast(x, "float32"), scale, [-1], epsilon))
        made.append(f.cast(normal, str(x.ty.dtype)))
    return made[0], made[1]


# -- lengths -------------------------------------------------------------------------------


def _lengths(f: Formula, batch: Expr, length: Expr, past: Value | None) -> _Lengths:
    node, context = f.node, f.context
    symbols = context.symbols
    total, held = node.input(6), 0 if past is None else past.shape[2]
    grown = symbols.simplify(held + length)
    if not is_scalar(total):
        raise node.error(f"total_sequence_length has the shape {list(total.shape)}")
    if isinstance(total, KnownValue):
        columns: Expr = context.known_ints(_flat(node, total), 6)[0]
        if past is None:
            columns = symbols.unify(columns, length, f"{node.label} has no cache")
        symbols.require_at_most(columns, grown, f"{node.label} extends its cache")
        present = columns if past is None else symbols.maximum(columns, held)
    else:
        context.checked(node, total, grown, grown)
        columns = present = grown
    seqlens = _vector(f, node.input(5), batch, "seqlens_k")
    most = columns
    if node.integer("do_rotary", 0) and node.optional(9) is None:
        rows = node.input(7).shape[0]
        symbols.require_at_most(length, rows, f"{node.label} has {rows} positions")
        most = symbols.minimum(columns, rows)
    last = symbols.simplify(most - 1)
    checked = context.checked(node, seqlens, 0, last)
    tokens = f(op.add, f.cast(checked.var, "int64"), f.full(1, "int64"))
    given = node.optional(16)
    if given is None:
        count = f(op.minimum, tokens, scores.number(f, length))
    else:
        valid = context.checked(node, _vector(f, given, batch, "query_seqlens"), 0, length)
        count = f.cast(valid.var, "int64")
    start = f(op.maximum, f(op.subtract, tokens, count), f.full(0, "int64"))
    return _Lengths(length, columns, present, start, count, tokens)


def _flat(node: Node, total: KnownValue) -> Node:
    """The node with its total length as a vector of one."""
    value = KnownValue(total.name, total.dtype, total.data.reshape(1))
    return replace(node, inputs=(*node.inputs[:6], value, *node.inputs[7:]))


def _vector(f: Formula, value: Value, batch: Expr, what: str) -> TensorValue:
    if value.dtype != "int32":
        raise f.node.error(f"{what} is {value.dtype}, it must be int32")
    if value.rank == 2 and same(value.shape[1], 1):
        value = f.context.reshape(value, [value.shape[0]], f"{f.name}.lengths")
    f.fit(value, (batch,), what)
    cast = f.context.cast_shape(value, (batch,), f.node.label)
    return f.context.tensor(cast)


def _rotated(
    f: Formula, q: relax.Expr, k: relax.Expr, lengths: _Lengths, batch: Expr
) -> tuple[relax.Expr, relax.Expr]:
    node, (cosine, sine) = f.node, (f.node.input(7), f.node.input(8))
    half, size = table_width(node, cosine, sine), scores.dims(q)[3]
    if not isinstance(size, int) or 2 * half > size:
        raise node.error(f"tables of {half} columns rotate more than {size} elements")
    given = node.optional(9)
    if given is None:
        at = scores.places(f, lengths.start, lengths.length)
    else:
        f.fit(given, (batch, lengths.length), "position_ids")
        at = f.context.indices(node, given, cosine.shape[0])
    f.context.symbols.unify(cosine.shape[0], sine.shape[0], f"{node.label} rotates")
    pairs = [taken(f, table, at, (batch, lengths.length), half) for table in (cosine, sine)]
    interleaved = bool(node.integer("rotary_interleaved", 0))
    return (
        scores.rotate(f, q, pairs[0], pairs[1], interleaved),
        scores.rotate(f, k, pairs[0], pairs[1], interleaved),
    )


# -- cache ---------------------------------------------------------------------------------


def _updated(
    f: Formula,
    past: Value | None,
    new: relax.Expr,
    lengths: _Lengths,
    shape: tuple[Expr, int, int],
) -> relax.Expr:
    """The cache [b, groups, present, size] with the new rows [b, s, groups, size] appended."""
    batch, groups, size = shape
    if past is None:
        return turned(f, new)
    f.node.need_rank(past, 4, 4)
    held = past.shape[2]
    f.fit(past, (batch, groups, held, size), "the cache")
    if past.dtype != str(new.ty.dtype):
        raise f.node.unsupported(f"a cache of {past.dtype} is not compiled")
    old = f.context.cast_shape(past, (batch, groups, held, size), f.node.label)

    def update(p: te.Tensor, x: te.Tensor, start: te.Tensor, count: te.Tensor) -> te.Tensor:
        def element(b: Any, h: Any, row: Any, d: Any) -> Any:
            # Neither read leaves its tensor, whatever the lengths are.
            kept = tirx.all(row < start(b), row < held)
            fresh = row - start(b)
            inside = tirx.all(fresh >= 0, fresh < count(b))
            value = tirx.if_then_else(inside, x(b, fresh, h, d), tirx.const(0, past.dtype))
            return tirx.if_then_else(kept, p(b, h, row, d), value)

        return te.compute((batch, groups, lengths.present, size), element, name="extend_cache")

    operands: list[Value] = [old, *(f.known(x) for x in (new, lengths.start, lengths.count))]
    result = [batch, groups, lengths.present, size]
    return f.context.emit_te(f"{f.name}.cache", update, operands, result, "extend_cache").var


def _used(f: Formula, cache: relax.Expr, lengths: _Lengths) -> relax.Expr:
    """The rows that can hold tokens: a cache longer than that is a buffer of fixed size."""
    if f.context.symbols.equal(lengths.present, lengths.total):
        return cache
    shape = scores.dims(cache)
    part = op.strided_slice(cache, [2], [0], [lengths.total], [1], assume_inbound=True)
    return f.bind(part, [*shape[:2], lengths.total, shape[3]])


# -- scores --------------------------------------------------------------------------------


def _biases(f: Formula, lengths: _Lengths, shape: list[Expr]) -> list[relax.Expr]:
    node, (batch, _, length, total) = f.node, shape
    column = scores.column(f, total)
    if node.integer("causal", 1):
        at = scores.places(f, lengths.start, length)
        at = f.reshape(at, [batch, 1, length, 1])
        allowed = f(op.less_equal, column, at)
        window = node.integer("local_window_size", -1)
        if window > 0:
            first = f(op.subtract, at, f.full(window, "int64"))
            allowed = f(op.logical_and, allowed, f(op.greater, column, first))
    else:
        allowed = f(op.less, column, f.reshape(lengths.tokens, [batch, 1, 1, 1]))
    biases = [scores.masked(f, allowed)]
    bias = node.optional(10)
    if bias is not None:
        node.need_rank(bias, 4, 4)
        lead = [1 if same(a, 1) else b for a, b in zip(bias.shape, shape[:2], strict=False)]
        biases.append(f.fit(bias, [*lead, length, total], "the attention bias"))
    return biases


def _sink(f: Formula, heads: int) -> relax.Expr | None:
    given = f.node.optional(11)
    if given is not None:
        return f.fit(given, (heads,), "head_sink")
    if f.node.integer("smooth_softmax", 0) == 1:
        return f(op.zeros, (heads,), "float32")
    return None


TABLE: Table = {
    (DOMAIN, "GroupQueryAttention", 1): entry(
        _group_query,
        "causal do_rotary k_norm_epsilon k_quant_type kv_cache_bit_width kv_num_heads "
        "local_window_size num_heads q_norm_epsilon qk_norm_epsilon qk_output rotary_interleaved "
        "scale sliding_window_cache smooth_softmax softcap v_quant_type",
        inputs=17,
        outputs=4,
    ),
}
