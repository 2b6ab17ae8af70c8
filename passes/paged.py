"""The composite operators of a paged key/value cache: private functions that define themselves.

    graphc.cache_append(cache [pages, page, heads, width], value [t, heads, width], slots [t])
                        -> cache
    graphc.paged_attention(q [t, h, d], keys, values (caches), query_starts [s + 1], lengths [s],
                           page_table [s, p][, slopes [h]][, sinks [h]]) -> [t, h, dv]

`query_starts` are prefix sums of the new tokens of each sequence, `lengths` the tokens of it after
this step. The query at distance r from the end of its sequence's chunk has position
lengths[s] - r; it sees the keys at positions j <= its own (and > its own - window). Where the
values are narrower than their cache (`width` of the composite), they are its first features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

CACHE_APPEND = "graphc.cache_append"
PAGED_ATTENTION = "graphc.paged_attention"
PAGE_SIZE = 16
_MASKED = -1e30


@dataclass(frozen=True)
class PagedAttention:
    """What is fixed while compiling.

    window: a query sees that many tokens, itself included (0: all); softcap: c tanh(score / c)
    (0: none); width: features of a value that are read.
    """

    scale: float
    width: int
    window: int = 0
    softcap: float = 0.0
    has_slopes: bool = False
    has_sinks: bool = False


def append_function(heads: int, width: int, dtype: str = "float32") -> relax.Function:
    """The private Relax function of one append: a copy of the cache with new entries.

    A compiled one writes in place; this definition is for targets without such a kernel.
    """
    pages, tokens = tirx.Var("pages", "int64"), tirx.Var("tokens", "int64")
    cache = relax.Var("cache", relax.TensorType((pages, PAGE_SIZE, heads, width), dtype))
    value = relax.Var("value", relax.TensorType((tokens, heads, width), dtype))
    slots = relax.Var("slots", relax.TensorType((tokens,), "int32"))
    builder = relax.BlockBuilder()
    attrs = {"Composite": CACHE_APPEND}
    with builder.function("cache_append", [cache, value, slots], attrs=attrs, private=True):
        with builder.dataflow():
            op = relax.op
            flat = builder.emit(op.reshape(cache, (pages * PAGE_SIZE, heads, width)))
            at = builder.emit(op.expand_dims(op.astype(slots, "int64"), [1]))
            written = builder.emit(op.scatter_nd(flat, at, value))
            result = builder.emit_output(op.reshape(written, (pages, PAGE_SIZE, heads, width)))
        builder.emit_func_output(result)
    return builder.get()["cache_append"]


def attention_function(
    attention: PagedAttention, heads: int, keys: Sequence[int], values: Sequence[int], dtype: str
) -> relax.Function:
    """The private Relax function; `keys` and `values` are [heads, width] of their caches."""
    tokens, pages, sequences, most = (
        tirx.Var(name, "int64") for name in ("tokens", "pages", "sequences", "pages_each")
    )
    extents: list[tuple[str, tuple[Any, ...], str]] = [
        ("q", (tokens, heads, keys[1]), "float32"),
        ("keys", (pages, PAGE_SIZE, *keys), dtype),
        ("values", (pages, PAGE_SIZE, *values), dtype),
        ("query_starts", (sequences + 1,), "int32"),
        ("lengths", (sequences,), "int32"),
        ("page_table", (sequences, most), "int32"),
    ]
    if attention.has_slopes:
        extents.append(("slopes", (heads,), "float32"))
    if attention.has_sinks:
        extents.append(("sinks", (heads,), "float32"))
    params = [relax.Var(name, relax.TensorType(dims, kind)) for name, dims, kind in extents]
    builder = relax.BlockBuilder()
    attrs = {
        "Composite": PAGED_ATTENTION,
        "scale": float(attention.scale),
        "width": attention.width,
        "window": attention.window,
        "softcap": float(attention.softcap),
        "has_slopes": attention.has_slopes,
        "has_sinks": attention.has_sinks,
    }
    with builder.function("paged_attention", params, attrs=attrs, private=True):
        with builder.dataflow():
            definition = _Definition(builder, attention, params, (tokens, sequences, most))
            result = builder.emit_output(definition.result())
        builder.emit_func_output(result)
    return builder.get()["paged_attention"]


class _Definition:
    """Gathers the pages of every query and attends to them: slow, and plainly right."""

    def __init__(
        self,
        builder: relax.BlockBuilder,
        attention: PagedAttention,
        params: Sequence[relax.Var],
        dims: tuple[Any, Any, Any],
    ) -> None:
        self._emit, self._attention = builder.emit, attention
        self._q, self._keys, self._values = params[:3]
        self._starts, self._lengths, self._table = params[3:6]
        self._more = list(params[6:])
        self._tokens, self._sequences, self._most = dims

    def result(self) -> relax.Expr:
        op, emit, attention = relax.op, self._emit, self._attention
        tokens, heads, _ = self._q.ty.shape
        owner, position = self._positions()  # [t], of the queries
        length = self._most * PAGE_SIZE
        pages = emit(op.take(self._table, owner, axis=0))  # [t, p]
        keys, values = (self._gathered(cache, pages) for cache in (self._keys, self._values))
        groups = int(keys.ty.shape[2])
        each = int(heads) // groups
        q = emit(op.reshape(self._q, (tokens, groups, each, int(self._q.ty.shape[2]))))
        turned = emit(op.permute_dims(keys, [0, 2, 3, 1]))  # [t, hk, d, j]
        scores = emit(op.matmul(q, turned))  # [t, hk, each, j]
        scores = emit(op.reshape(scores, (tokens, heads, length)))
        scores = emit(op.multiply(scores, _number(attention.scale)))
        if attention.softcap:
            scores = emit(op.tanh(op.divide(scores, _number(attention.softcap))))
            scores = emit(op.multiply(scores, _number(attention.softcap)))
        behind = self._behind(position, length)  # [t, j] = j - position
        if attention.has_slopes:
            slopes = emit(op.reshape(self._more[0], (1, heads, 1)))
            far = emit(op.astype(op.reshape(behind, (tokens, 1, length)), "float32"))
            scores = emit(op.add(scores, op.multiply(slopes, far)))
        weights = self._weights(scores, behind)
        weights = emit(op.reshape(weights, (tokens, groups, each, length)))
        turned = emit(op.permute_dims(values, [0, 2, 1, 3]))  # [t, hk, j, dv]
        result = emit(op.matmul(weights, turned))
        return op.reshape(result, (tokens, heads, int(values.ty.shape[3])))

    def _positions(self) -> tuple[relax.Expr, relax.Expr]:
        """The sequence of every query and its position in it."""
        op, emit = relax.op, self._emit
        number = emit(op.arange(0, self._tokens, 1, "int32"))
        ends = emit(op.strided_slice(self._starts, [0], [1], [self._sequences + 1]))
        passed = op.less_equal(op.expand_dims(ends, [0]), op.expand_dims(number, [1]))
        owner = emit(op.sum(op.astype(emit(passed), "int32"), axis=[1]))
        from_end = emit(op.subtract(op.take(ends, owner, axis=0), number))
        return owner, emit(op.subtract(op.take(self._lengths, owner, axis=0), from_end))

    def _gathered(self, cache: relax.Var, pages: relax.Expr) -> relax.Expr:
        """[t, j, heads, width] of every query's own sequence, in float32."""
        op, emit = relax.op, self._emit
        heads, width = (int(extent) for extent in list(cache.ty.shape)[2:])
        found = emit(op.take(cache, pages, axis=0))  # [t, p, page, heads, width]
        shape = (self._tokens, self._most * PAGE_SIZE, heads, width)
        found = emit(op.reshape(found, shape))
        if cache is self._values and self._attention.width != width:
            found = emit(op.strided_slice(found, [3], [0], [self._attention.width]))
        return found if str(cache.ty.dtype) == "float32" else emit(op.astype(found, "float32"))

    def _behind(self, position: relax.Expr, length: Any) -> relax.Expr:
        op, emit = relax.op, self._emit
        keys = emit(op.arange(0, length, 1, "int32"))
        return emit(op.subtract(op.expand_dims(keys, [0]), op.expand_dims(position, [1])))

    def _weights(self, scores: relax.Expr, behind: relax.Expr) -> relax.Expr:
        """Softmax over the keys that a query sees; a sink takes its share and gives nothing."""
        op, emit = relax.op, self._emit
        seen = emit(op.less_equal(behind, relax.const(0, "int32")))
        if self._attention.window:
            near = op.greater(behind, relax.const(-self._attention.window, "int32"))
            seen = emit(op.logical_and(seen, emit(near)))
        seen = emit(op.expand_dims(seen, [1]))
        scores = emit(op.where(seen, scores, _number(_MASKED)))
        if not self._attention.has_sinks:
            return emit(op.nn.softmax(scores, -1))
        tokens, heads, length = scores.ty.shape
        sinks = emit(op.reshape(self._more[-1], (1, heads, 1)))
        sinks = emit(op.broadcast_to(sinks, (tokens, heads, 1)))
        weights = emit(op.nn.softmax(emit(op.concat([scores, sinks], 2)), -1))
        return emit(op.strided_slice(weights, [2], [0], [length]))


def _number(value: float) -> tvm.ir.GenericConst:
    return relax.const(value, "float32")
