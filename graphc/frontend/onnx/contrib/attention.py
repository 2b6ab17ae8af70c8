"""Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib import scores
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry, fixed, shared
from graphc.frontend.onnx.contrib.scores import Scores, attend, by_heads, turned
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops import matmul
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

_LOWEST = -3.4028234663852886e38  # of float32: what masked scores are, where they are a result


@dataclass(frozen=True)
class Parts:
    """q [b, h, s, d], k [b, h, t, d] and v [b, h, t, dv] behind their cache, and its length."""

    q: relax.Expr
    k: relax.Expr
    v: relax.Expr
    past: Expr


# -- Attention -----------------------------------------------------------------------------


def _attention(context: Context, node: Node) -> Result:
    f, value = Formula(context, node), node.input(0)
    _refuse_sharing(node)
    if node.integer("do_rotary", 0):
        raise node.unsupported("do_rotary is not compiled: rotate before the operator")
    node.need_float(value)
    node.need_rank(value, 3, 3)
    projected = f.standard(matmul.TABLE, "MatMul", 1, [value, node.input(1)])
    width = fixed(node, projected.shape[2], "the width of its weights")
    total, bias = projected.var, node.optional(2)
    if bias is not None:
        total = f(op.add, total, f.fit(bias, (width,), "the bias"))
    return merged_attention(f, total, projected.shape, node.optional(3), node.optional(4),
                            node.optional(5))  # fmt: skip


def merged_attention(
    f: Formula,
    projected: relax.Expr,
    shape: tuple[Expr, ...],
    mask: Value | None,
    past: Value | None,
    bias: Value | None,
) -> Result:
    """Attention over q, k, v beside each other in [b, s, 3 * hidden]; the cache is [2, b, ...]."""
    node, heads = f.node, f.node.integer("num_heads")
    width = fixed(node, shape[2], "the width of q, k and v")
    sizes = _hidden_sizes(node, width)
    batch, length = shape[:2]
    parts, start = [], 0
    for size in sizes:
        x = f.slice(projected, 2, start, start + size)
        each = shared(node, size, heads, "a hidden size")
        parts.append(turned(f, by_heads(f, x, (batch, length), heads, each)))
        start += size
    q, k, v = parts
    held: Expr = 0
    if past is not None:
        if sizes[1] != sizes[2]:
            raise node.error("a cache needs keys and values of one size")
        held = _dim(node, past, 3, 5)
        cache = f.fit(past, (2, batch, heads, held, sizes[1] // heads), "past")
        total = f.context.symbols.simplify(held + length)
        k, v = (_behind(f, f.slice(cache, 0, n, n + 1), x, total) for n, x in ((0, k), (1, v)))
    found = Parts(q, k, v, held)
    result, _ = _attended(f, found, mask, bias)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return result
    both = [f(op.expand_dims, x, 0) for x in (k, v)]
    return [result, f.result(op.concat(both, axis=0), index=1)]


def _hidden_sizes(node: Node, width: int) -> list[int]:
    sizes = list(node.integers("qkv_hidden_sizes", ()))
    if not sizes:
        return [shared(node, width, 3, "the width of its weights")] * 3
    if len(sizes) != 3 or sum(sizes) != width or sizes[0] != sizes[1] or min(sizes) < 1:
        raise node.error(f"qkv_hidden_sizes {sizes} do not fit weights of width {width}")
    return sizes


def _dim(node: Node, value: Value, axis: int, rank: int) -> Expr:
    node.need_rank(value, rank, rank)
    return value.shape[axis]


def _behind(f: Formula, cache: relax.Expr, x: relax.Expr, total: Expr) -> relax.Expr:
    """The cache [(1,) b, h, p, d] and then x [b, h, l, d]."""
    dims = scores.dims(cache)[-4:]
    cache = f.reshape(cache, dims)
    return f.bind(op.concat([cache, x], axis=2), [*dims[:2], total, dims[3]])


def _refuse_sharing(node: Node) -> None:
    if node.integer("past_present_share_buffer", 0):
        raise node.unsupported(
            "past_present_share_buffer: export with caches that grow, or with GroupQueryAttention"
        )


# -- MultiHeadAttention --------------------------------------------------------------------


def _multi_head(context: Context, node: Node) -> Result:
    if node.optional(8) is not None or node.optional(9) is not None:
        raise node.unsupported("caches shared with the outputs (inputs 8 and 9) are not compiled")
    node.input(0)
    order = [node.optional(index) for index in (0, 1, 2, 3, 6, 7)]
    return _separate(Formula(context, node), order, node.optional(4), node.optional(5))


def _decoder_masked(context: Context, node: Node) -> Result:
    """MultiHeadAttention for one new token, with its inputs in another order."""
    _refuse_sharing(node)
    if any(node.optional(index) is not None for index in (7, 8, 9)):
        raise node.unsupported("caches shared with the outputs (inputs 7 to 9) are not compiled")
    node.input(0)
    order = [node.optional(index) for index in (0, 1, 2, 10, 5, 6)]
    return _separate(Formula(context, node), order, node.optional(3), node.optional(4))


def _separate(
    f: Formula, inputs: list[Value | None], mask: Value | None, bias: Value | None
) -> Result:
    """inputs: query, key, value, the bias of the projections, past key, past value."""
    node = f.node
    query, key, value, added, past_key, past_value = inputs
    assert query is not None
    node.need_float(query)
    heads = node.integer("num_heads")
    if heads < 1:
        raise node.error(f"num_heads is {heads}")
    q, k, v = _projections(f, query, key, value, heads)
    if added is not None:
        q, k, v = _with_bias(f, [q, k, v], added)
    if key is not None and key.rank == 4:
        if past_key is not None or added is not None or value is None:
            raise node.error("keys with heads apart leave no place for a bias or a cache")
        # [b, h, t, d] already: what is appended to an empty cache
        found = Parts(turned(f, q), k, v, 0)
    else:
        q, k, v = (turned(f, x) for x in (q, k, v))
        found = Parts(q, k, v, 0)
    if (past_key is None) != (past_value is None):
        raise node.error("past_key and past_value must be given together")
    if past_key is not None and past_value is not None:
        found = _cached(f, found, past_key, past_value)
    result, attended = _attended(f, found, mask, bias)
    results: list[TensorValue | None] = [result]
    for index, expr in ((1, found.k), (2, found.v), (3, attended)):
        if index < len(node.outputs):
            wanted = bool(node.outputs[index])
            results.append(f.result(expr, index=index) if wanted else None)
    return results


def _projections(
    f: Formula, query: Value, key: Value | None, value: Value | None, heads: int
) -> list[relax.Expr]:
    """q, k, v as [b, s, h, d]; keys and values with heads apart stay [b, h, t, d]."""
    node, context = f.node, f.context
    if query.rank == 5:
        return _unpacked(f, query, heads, 3)
    node.need_rank(query, 3, 3)
    batch, length, hidden = query.shape
    size = shared(node, fixed(node, hidden, "the hidden size"), heads, "the hidden size")
    q = by_heads(f, context.expr(query), (batch, length), heads, size)
    if key is None:
        raise node.error("its keys are missing")
    if key.rank == 5:
        return [q, *_unpacked(f, key, heads, 2)]
    if value is None:
        raise node.error("its values are missing")
    node.same_dtype(query, key, value)
    if key.rank == 4:
        rows = key.shape[2]
        depth = _dim(node, value, 3, 4)
        return [q, f.fit(key, (batch, heads, rows, size), "the keys"),
                f.fit(value, (batch, heads, rows, depth), "the values")]  # fmt: skip
    rows = _dim(node, key, 1, 3)
    wide = fixed(node, _dim(node, value, 2, 3), "the values' hidden size")
    k = by_heads(f, f.fit(key, (batch, rows, hidden), "the keys"), (batch, rows), heads, size)
    each = shared(node, wide, heads, "the values' hidden size")
    v = f.fit(value, (batch, rows, wide), "the values")
    return [q, k, by_heads(f, v, (batch, rows), heads, each)]


def _unpacked(f: Formula, packed: Value, heads: int, count: int) -> list[relax.Expr]:
    """[b, s, h, count, d] -> count times [b, s, h, d]"""
    batch, length = packed.shape[:2]
    size = fixed(f.node, packed.shape[4], "the head size")
    x = f.fit(packed, (batch, length, heads, count, size), "the packed projections")
    return [f.reshape(f.slice(x, 3, n, n + 1), [batch, length, heads, size]) for n in range(count)]


def _with_bias(f: Formula, parts: list[relax.Expr], bias: Value) -> list[relax.Expr]:
    ends = [0]
    shapes = [scores.dims(x)[2:] for x in parts]
    for heads, size in shapes:
        ends.append(ends[-1] + fixed(f.node, heads * size, "a hidden size"))
    whole = f.fit(bias, (ends[-1],), "the bias")
    return [
        f(op.add, x, f.reshape(f.slice(whole, 0, ends[n], ends[n + 1]), shapes[n]))
        for n, x in enumerate(parts)
    ]


def _cached(f: Formula, found: Parts, past_key: Value, past_value: Value) -> Parts:
    batch, heads, length, size = scores.dims(found.k)
    held = _dim(f.node, past_key, 2, 4)
    depth = scores.dims(found.v)[3]
    key = f.fit(past_key, (batch, heads, held, size), "past_key")
    value = f.fit(past_value, (batch, heads, held, depth), "past_value")
    total = f.context.symbols.simplify(held + length)
    return Parts(found.q, _behind(f, key, found.k, total), _behind(f, value, found.v, total), held)


# -- what both share -----------------------------------------------------------------------


def _attended(
    f: Formula, found: Parts, mask: Value | None, bias: Value | None
) -> tuple[TensorValue, relax.Expr]:
    """The result [b, s, h * dv], and the scores before the softmax."""
    node = f.node
    batch, heads, length, size = scores.dims(found.q)
    total, depth = scores.dims(found.v)[2:]
    shape = [batch, heads, length, total]
    biases = []
    if bias is not None:
        node.need_rank(bias, 4, 4)
        lead = [1 if same(a, 1) else b for a, b in zip(bias.shape, shape[:2], strict=False)]
        biases.append(f.fit(bias, [*lead, length, total], "the attention bias"))
    seen: relax.Expr | None = None
    if node.integer("unidirectional", 0):
        seen = _causal(f, found.past, length, total)
    if mask is not None:
        biases.append(_padding(f, mask, shape))
    if seen is not None:
        biases.append(scores.masked(f, seen, _LOWEST))
    assert isinstance(size, int), size
    rule = Scores(scores.scale_of(f, size), biases)
    made = attend(f, found.q, found.k, found.v, rule, shape)
    hidden = f.context.symbols.product([heads, depth])
    flat = op.reshape(turned(f, made.result), (batch, length, hidden))
    return f.result(flat, [batch, length, hidden]), made.scores


def _causal(f: Formula, past: Expr, length: Expr, total: Expr) -> relax.Expr:
    """Keys up to past + s, [1, 1, s, t]. The last query sees all of them.

    That is the same when queries and keys are the same tokens, and ONNX Runtime's choice otherwise.
    """
    at = f(op.add, scores.places(f, None, length), scores.number(f, past))
    at = f.reshape(at, [1, 1, length, 1])
    seen = f(op.less_equal, scores.column(f, total), at)
    if f.context.symbols.equal(total, f.context.symbols.simplify(past + length)):
        return seen
    last = scores.number(f, f.context.symbols.simplify(past + length - 1))
    return f(op.logical_or, seen, f(op.equal, at, last))


def _padding(f: Formula, mask: Value, shape: list[Expr]) -> relax.Expr:
    """mask_filter_value where the mask is 0, or outside the range that it gives."""
    node, (batch, _, length, total) = f.node, shape
    if mask.dtype != "int32":
        raise node.error(f"its mask is {mask.dtype}, it must be int32")
    low = node.number("mask_filter_value", -10000.0)
    if mask.rank == 2:
        kept = f.reshape(f.fit(mask, (batch, total), "the mask"), [batch, 1, 1, total])
        return scores.masked(f, f(op.greater, kept, f.full(0, "int32")), low)
    if mask.rank == 3:
        kept = f.fit(mask, (batch, length, total), "the mask")
        kept = f.reshape(kept, [batch, 1, length, total])
        return scores.masked(f, f(op.greater, kept, f.full(0, "int32")), low)
    if mask.rank != 1:
        raise node.unsupported(f"a mask of {mask.rank} dimensions is not compiled")
    at = scores.column(f, total)
    x = f.cast(f.context.expr(mask), "int64")
    twice = f.context.symbols.simplify(2 * batch)
    if f.context.symbols.equal(mask.shape[0], twice) and not same(mask.shape[0], batch):
        ends = f.reshape(f.slice(x, 0, 0, batch), [batch, 1, 1, 1])
        starts = f.reshape(f.slice(x, 0, batch, twice), [batch, 1, 1, 1])
        inside = f(op.logical_and, f(op.less, at, ends), f(op.greater_equal, at, starts))
        return scores.masked(f, inside, low)
    ends = f.fit(mask, (batch,), "the mask")
    ends = f.reshape(f.cast(ends, "int64"), [batch, 1, 1, 1])
    return scores.masked(f, f(op.less, at, ends), low)


TABLE: Table = {
    (DOMAIN, "Attention", 1): entry(
        _attention,
        "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes "
        "rotary_embedding_dim scale unidirectional",
        inputs=6,
        outputs=2,
    ),
    (DOMAIN, "MultiHeadAttention", 1): entry(
        _multi_head, "mask_filter_value num_heads scale unidirectional", inputs=10, outputs=4
    ),
    (DOMAIN, "DecoderMaskedMultiHeadAttention", 1): entry(
        _decoder_masked,
        "mask_filter_value num_heads output_qk past_present_share_buffer scale",
        inputs=11,
        outputs=4,
    ),
}
