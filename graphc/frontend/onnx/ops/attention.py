"""Attention of operator sets 23 and later, with caches, masks, windows and a soft cap."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import scalar
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import DTYPES, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


@dataclass(frozen=True)
class _Operands:
    """query [b, heads, s, d], key [b, kv_heads, t, d], value [b, kv_heads, t, dv]."""

    query: Value
    key: Value
    value: Value
    flat: bool
    """The result is [b, s, heads * dv] again."""


def _attention(context: Context, node: Node) -> Result:
    """softmax(softcap(scale * q k^T) + bias) v; rows without any key give 0.

    ONNX, operators Attention-23, -24 and -25: the bias is the mask plus -inf for what the causal
    frontier, the window and the number of valid keys exclude.
    """
    w = Writer(context, node)
    given = _operands(context, node, w)
    query, key, value = given.query, given.key, given.value
    dtype = query.dtype
    heads, kv_heads = query.shape[1], key.shape[1]
    if not isinstance(heads, int) or not isinstance(kv_heads, int) or heads % kv_heads:
        raise node.error(f"{heads} query heads do not share {kv_heads} key heads")
    scores = _scores(context, node, w, given)
    exposed = [scores]
    cap = node.number("softcap", 0.0)
    if cap:
        if cap < 0:
            raise node.error(f"softcap is {cap}, it must not be negative")
        capped = w(op.tanh, w(op.divide, scores, cap))
        scores = w(op.multiply, capped, cap)
    exposed.append(scores)
    bias = _bias(context, node, w, given)
    if bias is not None:
        scores = w.binary(op.add, scores, bias)
    exposed.append(scores)
    weights = w.cast(_softmax(context, node, w, scores, bias), dtype)
    exposed.append(weights)
    result = _product(w, weights, _repeated(context, w, value, heads))
    if given.flat:
        b, h, s, d = result.shape
        moved = w.transpose(result, [0, 2, 1, 3])
        result = w.reshape(moved, [b, s, context.symbols.product([h, d])])
    mode = node.integer("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        raise node.error(f"qk_matmul_output_mode is {mode}, it must be 0 to 3")
    return [result, key, value, exposed[mode]][: len(node.outputs)]


def _operands(context: Context, node: Node, w: Writer) -> _Operands:
    inputs = [node.input(index) for index in range(3)]
    node.need_float(inputs[0])
    node.same_dtype(inputs[0], inputs[1])
    rank = inputs[0].rank
    if rank not in (3, 4) or any(value.rank != rank for value in inputs):
        raise node.error("query, key and value must all have 3 or all have 4 dimensions")
    if rank == 3:
        counts = [node.integer("q_num_heads"), *[node.integer("kv_num_heads")] * 2]
        inputs = [
            _by_heads(context, node, w, value, count)
            for value, count in zip(inputs, counts, strict=True)
        ]
    query, key, value = inputs
    past_key, past_value = node.optional(4), node.optional(5)
    if (past_key is None) != (past_value is None):
        raise node.error("past_key and past_value must be given together")
    if past_key is not None and past_value is not None:
        key = w.concat([past_key, key], 2)
        value = w.concat([past_value, value], 2)
    return _Operands(query, key, value, rank == 3)


def _by_heads(context: Context, node: Node, w: Writer, value: Value, heads: int) -> Value:
    """[b, s, heads * d] -> [b, heads, s, d]"""
    batch, length, hidden = value.shape
    size = context.symbols.exact_quotient(hidden, heads) if heads > 0 else None
    if size is None:
        raise node.error(f"a dimension of {hidden} does not divide into {heads} heads")
    return w.transpose(w.reshape(value, [batch, length, heads, size]), [0, 2, 1, 3])


def _repeated(context: Context, w: Writer, value: Value, heads: int) -> Value:
    """Every key head as often as query heads share it."""
    batch, groups, length, size = value.shape
    assert isinstance(groups, int), groups
    if groups == heads:
        return value
    apart = w.reshape(value, [batch, groups, 1, length, size])
    spread = context.broadcast_to(
        apart, (batch, groups, heads // groups, length, size), f"{value.name}.spread"
    )
    return w.reshape(spread, [batch, heads, length, size])


def _scores(context: Context, node: Node, w: Writer, given: _Operands) -> Value:
    """Half of the scale on each side, so that a product of halves does not overflow."""
    query, key = given.query, given.key
    heads, size = query.shape[1], query.shape[3]
    assert isinstance(heads, int), heads
    if not isinstance(size, int):
        raise node.unsupported("a head size that depends on the inputs is not compiled")
    scale = node.number("scale", 0.0) or 1 / math.sqrt(size)
    if scale < 0:
        raise node.error(f"scale is {scale}, it must be positive")
    root = math.sqrt(scale)
    left = w(op.multiply, query, root)
    right = w(op.multiply, _repeated(context, w, key, heads), root)
    return _product(w, left, w.transpose(right, [0, 1, 3, 2]))


def _product(w: Writer, left: Value, right: Value) -> Value:
    """Half precision is summed in float32."""
    if left.dtype not in ("float16", "bfloat16"):
        return w(op.matmul, left, right)
    return w.cast(w(lambda a, b: op.matmul(a, b, "float32"), left, right), left.dtype)


def _softmax(context: Context, node: Node, w: Writer, scores: Value, bias: Value | None) -> Value:
    precision = node.integer("softmax_precision", 0)
    wide = "float32" if scores.dtype in ("float16", "bfloat16") else scores.dtype
    if precision:
        if DTYPES.get(precision) not in ("float16", "bfloat16", "float32", "float64"):
            raise node.error(f"softmax_precision {precision} is not a floating-point type")
        if DTYPES[precision] in ("float32", "float64"):
            wide = DTYPES[precision]
    weights = w(lambda x: op.nn.softmax(x, -1), w.cast(scores, wide))
    if bias is None:
        return weights
    # A row without a key: -inf everywhere, whose softmax is NaN.
    reach = w(lambda x: op.max(x, [-1], keepdims=True), bias)
    empty = w(op.equal, reach, -math.inf)
    return w.where(empty, w.full(0, wide), weights)


def _bias(context: Context, node: Node, w: Writer, given: _Operands) -> Value | None:
    """What is added to the scores: broadcastable to [b, heads, s, t]."""
    length, total = given.query.shape[2], given.key.shape[2]
    dtype = given.query.dtype
    zero, low = w.full(0, dtype), w.full(-math.inf, dtype)
    bias: Value | None = None
    mask = node.optional(3)
    if mask is not None:
        mask = _padded(context, node, w, mask, total)
        bias = w.where(mask, zero, low) if mask.dtype == "bool" else w.cast(mask, dtype)
    allowed = _allowed(context, node, w, length, total)
    valid = node.optional(6)
    if valid is not None:
        columns = w.reshape(w.arange(total), [1, 1, 1, total])
        count = w.reshape(w.cast(valid, "int64"), [valid.shape[0], 1, 1, 1])
        held = w.binary(op.less, columns, count)
        allowed = held if allowed is None else w.binary(op.logical_and, allowed, held)
    if allowed is None:
        return bias
    extra = w.where(allowed, zero, low)
    return extra if bias is None else w.binary(op.add, bias, extra)


def _padded(context: Context, node: Node, w: Writer, mask: Value, total: Expr) -> Value:
    """A mask that is shorter than the keys excludes the rest."""
    node.need_rank(mask, 1, 4)
    held = mask.shape[-1]
    missing = context.symbols.simplify(total - held)
    if same(missing, 0) or same(held, total):
        return mask
    if not context.symbols.at_most(1, missing):
        context.symbols.unify(held, total, f"{node.label} adds its mask")
        return mask
    shape = [*mask.shape[:-1], missing]
    fill = w.full(False if mask.dtype == "bool" else -math.inf, mask.dtype)
    rest = context.broadcast_to(fill, tuple(shape), f"{mask.name}.rest")
    return w.concat([mask, rest], mask.rank - 1)


def _allowed(context: Context, node: Node, w: Writer, length: Expr, total: Expr) -> Value | None:
    """Which keys a query reaches: [s, t], or [b, 1, s, t] when each sample has its own place."""
    causal = bool(node.integer("is_causal", 0))
    left = node.integer("left_window_size", -1)
    right = node.integer("right_window_size", -1)
    if left < -1 or right < -1:
        raise node.error(f"its window is {left}, {right}: -1 or more are allowed")
    if not causal and left < 0 and right < 0:
        return None
    places: Value = w.reshape(w.arange(length), [length, 1])
    past, valid = node.optional(4), node.optional(6)
    if past is not None:
        places = w.binary(op.add, places, scalar(past.shape[2]))
    elif valid is not None:
        start = w.binary(op.subtract, w.cast(valid, "int64"), scalar(length))
        start = w.reshape(start, [valid.shape[0], 1, 1, 1])
        places = w.binary(op.add, places, start)
    ahead = w.binary(op.subtract, w.reshape(w.arange(total), [1, total]), places)
    allowed: Value | None = None
    for wanted, limit, relation in (
        (causal, 0, op.less_equal), (left >= 0, -left, op.greater_equal),
        (right >= 0, right, op.less_equal),
    ):  # fmt: skip
        if wanted:
            found = w(relation, ahead, limit)
            allowed = found if allowed is None else w.binary(op.logical_and, allowed, found)
    return allowed


def _rotary(context: Context, node: Node) -> Result:
    """(x1 cos - x2 sin, x1 sin + x2 cos) of the halves, or of the even and the odd elements."""
    value, cosine, sine = node.input(0), node.input(1), node.input(2)
    node.need_float(value)
    node.same_dtype(value, cosine, sine)
    w = Writer(context, node)
    if value.rank == 3:
        given = _by_heads(context, node, w, value, node.integer("num_heads"))
    else:
        node.need_rank(value, 4, 4)
        given = value
    batch, heads, length, size = given.shape
    turned = node.integer("rotary_embedding_dim", 0) or size
    if not isinstance(turned, int) or not isinstance(size, int) or not 0 < turned <= size:
        raise node.error(f"rotary_embedding_dim {turned} does not fit heads of {size}")
    if turned % 2:
        raise node.error(f"an odd number of elements, {turned}, cannot be rotated")
    half = turned // 2
    places = node.optional(3)
    tables = [_table(context, node, w, table, places, half) for table in (cosine, sine)]
    shape = [batch, heads, length]

    def cut(start: int, end: int, step: int) -> Value:
        return w(
            lambda x: op.strided_slice(x, [3], [start], [end], [step], assume_inbound=True), given
        )

    interleaved = node.integer("interleaved", 0)
    x1, x2 = (
        (cut(0, turned, 2), cut(1, turned, 2)) if interleaved else (cut(0, half, 1),
                                                                   cut(half, turned, 1))
    )  # fmt: skip
    cos, sin = tables
    real = w.binary(op.subtract, w.binary(op.multiply, x1, cos), w.binary(op.multiply, x2, sin))
    other = w.binary(op.add, w.binary(op.multiply, x1, sin), w.binary(op.multiply, x2, cos))
    if interleaved:
        pairs = [w.reshape(part, [*shape, half, 1]) for part in (real, other)]
        result = w.reshape(w.concat(pairs, 4), [*shape, turned])
    else:
        result = w.concat([real, other], 3)
    if turned < size:
        result = w.concat([result, cut(turned, size, 1)], 3)
    if value.rank == 4:
        return result
    return w.reshape(w.transpose(result, [0, 2, 1, 3]), value.shape)


def _table(
    context: Context, node: Node, w: Writer, table: Value, places: Value | None, half: int
) -> Value:
    """Cosines or sines as [b, 1, s, half]."""
    if places is not None:
        node.need_rank(table, 2, 2)
        safe = context.indices(node, places, table.shape[0])
        call = op.take(context.expr(table), safe, axis=0, mode="fast")
        table = context.emit(call, f"{table.name}.rows", (*places.shape, table.shape[1]))
    node.need_rank(table, 3, 3)
    context.symbols.unify(table.shape[2], half, f"{node.label} rotates pairs")
    batch, length, size = table.shape
    return w.reshape(table, [batch, 1, length, size])


TABLE: Table = {
    ("", "Attention", 23): Operator(_attention),
    ("", "RotaryEmbedding", 23): Operator(_rotary),
}
