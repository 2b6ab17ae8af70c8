"""Scaled dot-product attention in one kernel: softmax(scale * q k^T + bias) v.

    q [b, s, h, d]   k [b, t, hk, d]   v [b, t, hk, dv]   bias [b|1, h|1, s|1, t]  ->  [b, s, h, dv]

    for (batch, head, chunk of queries) in parallel:
      KT [t / columns, d, columns] = k of this head, transposed once
      V  [t, dv]                   = v of this head, put together: its rows lie far apart
      for a block of `rows` queries:
        S [rows, t]  = q KT          register blocks of rows x columns
        S            = exp(scale * S + bias - row maximum), with the row's sum
        out          = S V / sum     register blocks of rows x columns

The scores of a block of queries stay in cache (rows * t floats), the [s, t] matrix is never stored.
FLOPs: 2 s t (d + dv) for each head, about 20 more for each score's exponential.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.math import exp_low
from graphc.targets.target import Target

NAME = "attention"
VERSION = 2


@dataclass(frozen=True)
class Decisions:
    """Register block of scores: `rows` queries x (`vectors` vectors of `lanes` keys).

    Queries that do not fill a block are taken by blocks of `tail_rows`, fewer one by one.
    """

    rows: int
    vectors: int
    lanes: int
    tail_rows: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.rows}x{self.columns}"


def default_decisions(target: Target) -> Decisions:
    """24 accumulators where there are 32 registers, 12 where there are 16."""
    lanes = target.lanes(32)
    if target.vector_registers < 32:
        return Decisions(rows=6, vectors=2, lanes=lanes, tail_rows=3)
    if lanes < 16:
        return Decisions(rows=6, vectors=4, lanes=lanes, tail_rows=3)
    return Decisions(rows=12, vectors=2, lanes=lanes, tail_rows=4)


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """The composite graphc.attention in float32 with static head counts and sizes."""
    types = [a.ty for a in arguments]
    if any(str(ty.dtype) != "float32" or ty.ndim != 4 for ty in types):
        return None
    static = [ty.shape[axis] for ty in types[:3] for axis in (2, 3)]
    if not all(isinstance(n, tirx.IntImm) for n in static):
        return None
    names = ["q", "k", "v", "bias", "out"] if len(types) == 4 else ["q", "k", "v", "out"]
    params = tir.fresh_buffers([*types, result], names)
    decisions = default_decisions(target)
    return _Attention(params, attrs, decisions, target.threads).build()


@dataclass(frozen=True)
class _Head:
    """What a task works on: one head of one sequence, in its workspaces."""

    batch: Any
    number: Any
    keys: Any  # [panels, depth, columns]
    values: Any  # [keys, value depth]
    scores: Any  # [rows, keys up to a whole panel]


class _Attention:
    """Writes the loops for one set of shapes."""

    def __init__(self, params: list[Any], attrs: Any, decisions: Decisions, threads: int) -> None:
        self.params, self.decisions, self.threads = params, decisions, threads
        self.q, self.k, self.v, self.out = params[0], params[1], params[2], params[-1]
        self.bias = params[3] if len(params) == 5 else None
        self.scale = float(attrs["scale"])
        self.causal, self.guard = bool(attrs["causal"]), bool(attrs["guard"])
        self.batch, self.queries, self.heads, self.depth = self.q.shape
        self.keys = self.k.shape[1]
        self.group = int(self.heads) // int(self.k.shape[2])
        self.value_depth = int(self.v.shape[3])

    def build(self) -> tirx.PrimFunc:
        d = self.decisions
        products = tir.product([self.batch, self.heads, self.queries, self.keys])
        flops = products * tir.const(2 * (int(self.depth) + self.value_depth))
        many = self.queries >= tir.const(d.tail_rows)
        with tir.function(NAME, self.params, str(d), flops) as build, tir.when(many):
            with tir.then():
                self._tasks(d.rows, d.tail_rows)
            with tir.otherwise():
                self._tasks(1, 1)
        return build.get()

    def _tasks(self, rows: int, tail_rows: int) -> None:
        """One task for each batch, head and chunk of query blocks: enough for all threads."""
        columns = tir.const(self.decisions.columns)
        full = tir.let(self.queries // tir.const(rows))
        left = self.queries - full * tir.const(rows)
        blocks = tir.let(full + (left + tir.const(tail_rows - 1)) // tir.const(tail_rows))
        pairs = tir.let(self.batch * self.heads)
        wanted = (tir.const(2 * self.threads) + pairs - tir.const(1)) // pairs
        chunks = tir.let(tirx.max(tirx.min(wanted, blocks), tir.const(1)))
        with tir.parallel(pairs * chunks) as task:
            pair, chunk = tir.bind(task // chunks), tir.bind(task % chunks)
            batch, number = tir.bind(pair // self.heads), tir.bind(pair % self.heads)
            panels = tir.let(  # a buffer's shape cannot read a buffer
                (self.keys + columns - tir.const(1)) // columns
            )
            head = _Head(
                batch,
                number,
                tir.workspace([panels, self.depth, columns]),
                tir.workspace([self.keys, self.value_depth]),
                tir.workspace([rows, panels * columns]),
            )
            self._gather(head)
            first = tir.bind(blocks * chunk // chunks)
            last = tir.bind(blocks * (chunk + tir.const(1)) // chunks)
            with tir.serial(last - first) as step:
                block = tir.bind(first + step)
                if rows == tail_rows:
                    self._block(head, block * tir.const(rows), rows)
                else:
                    self._full_or_tail(head, block, full, rows, tail_rows)

    def _full_or_tail(self, head: _Head, block: Any, full: Any, rows: int, tail_rows: int) -> None:
        with tir.when(block < full):
            with tir.then():
                self._block(head, block * tir.const(rows), rows)
            with tir.otherwise():
                # The last one overlaps its neighbour: the rows are computed again, equally.
                start = full * tir.const(rows) + (block - full) * tir.const(tail_rows)
                start = tirx.min(start, self.queries - tir.const(tail_rows))
                self._block(head, start, tail_rows)

    def _gather(self, head: _Head) -> None:
        """Keys of one head transposed, and its values put together."""
        columns, source = tir.const(self.decisions.columns), self._key_head(head.number)
        with tir.serial(self.keys) as key, tir.serial(self.depth) as at:
            value = tir.load(self.k, [head.batch, key, source, at])
            tir.store(head.keys, [key // columns, at, key % columns], value)
        with tir.serial(self.keys) as key:

            def copy(start: Any, count: int) -> None:
                with tir.vector(count) as lane:
                    value = tir.load(self.v, [head.batch, key, source, start + lane])
                    tir.store(head.values, [key, start + lane], value)

            tir.lanes_over(self.value_depth, self.decisions.lanes, copy)

    def _key_head(self, head: Any) -> Any:
        return head if self.group == 1 else head // tir.const(self.group)

    def _block(self, head: _Head, start: Any, rows: int) -> None:
        start = tir.bind(start)
        limit = tir.bind(self._visible(start + tir.const(rows - 1)))  # keys of the last row
        self._scores(head, start, rows, limit)
        scales = tir.local([rows])
        with tir.serial(rows) as i:
            self._softmax_row(head, scales, start, i, limit)
        tir.lanes_over(
            self.value_depth,
            self._value_columns(),
            lambda at, width: self._values(head, scales, start, rows, limit, at, width),
        )

    def _visible(self, query: Any) -> Any:
        """How many keys, from the first on, this query sees."""
        if not self.causal:
            return self.keys
        # Clamped from below: a query before the first key sees nothing.
        visible = query + (self.keys - self.queries) + tir.const(1)
        return tirx.max(tirx.min(self.keys, visible), tir.const(0))

    def _scores(self, head: _Head, start: Any, rows: int, limit: Any) -> None:
        """S = q KT, a register block for each panel; keys past the limit hold garbage."""
        d = self.decisions
        columns = tir.const(d.columns)
        with tir.serial((limit + columns - tir.const(1)) // columns) as panel:
            acc = tir.tile(rows, d.columns)
            for i, at in tir.over_tile(rows, d.vectors, d.lanes):
                tir.store(acc[i], [at], tir.f32(0.0))
            with tir.serial(self.depth) as k:
                for i, at in tir.over_tile(rows, d.vectors, d.lanes):
                    q = tir.load(self.q, [head.batch, start + tir.const(i), head.number, k])
                    term = q * tir.load(head.keys, [panel, k, at])
                    tir.store(acc[i], [at], tir.load(acc[i], [at]) + term)
            for i, at in tir.over_tile(rows, d.vectors, d.lanes):
                place = [tir.const(i), panel * columns + at]
                tir.store(head.scores, place, tir.load(acc[i], [at]))

    def _softmax_row(self, head: _Head, scales: Any, start: Any, i: Any, limit: Any) -> None:
        """Exponentials of one row in place, and the factor 1 / sum that is still to be applied."""
        lanes, scores = self.decisions.lanes, head.scores
        query = tir.bind(start + i)
        visible = tir.bind(self._visible(query)) if self.causal else limit
        highest = tir.local([lanes])
        tir.fill(highest, lanes, tir.f32(float("-inf")))

        def scaled(key: Any, count: int) -> None:
            part = tir.local([count])
            with tir.vector(count) as lane:
                value = tir.load(scores, [i, key + lane]) * tir.f32(self.scale)
                tir.store(part, [lane], self._biased(value, head, query, key + lane))
            with tir.vector(count) as lane:
                tir.store(scores, [i, key + lane], tir.load(part, [lane]))
            with tir.vector(count) as lane:
                joined = tirx.max(tir.load(highest, [lane]), tir.load(part, [lane]))
                tir.store(highest, [lane], joined)

        tir.row(visible, lanes, scaled)
        peak = tir.bind(tir.horizontal(highest, lanes, tirx.max))
        # A row of -inf only: exp(-inf - 0) = 0, and 0 / 0 below gives the formula's NaN.
        none = peak == tir.f32(float("-inf"))
        peak = tir.bind(tirx.Select(none, tir.f32(0.0), peak))
        total = tir.local([lanes])
        tir.fill(total, lanes, tir.f32(0.0))

        # -inf up to a whole vector, so that no exponential is taken alone.
        chunks = tir.bind((visible + tir.const(lanes - 1)) // tir.const(lanes))
        with tir.serial(chunks * tir.const(lanes) - visible) as rest:
            tir.store(scores, [i, visible + rest], tir.f32(float("-inf")))
        part = tir.local([lanes])
        with tir.serial(chunks) as chunk:
            key = chunk * tir.const(lanes)
            with tir.vector(lanes) as lane:
                tir.store(part, [lane], exp_low(tir.load(scores, [i, key + lane]) - peak))
            with tir.vector(lanes) as lane:
                tir.store(scores, [i, key + lane], tir.load(part, [lane]))
            with tir.vector(lanes) as lane:
                tir.store(total, [lane], tir.load(total, [lane]) + tir.load(part, [lane]))
        if self.causal:  # the block's other rows may see more keys than this one
            with tir.serial(limit - visible) as rest:
                tir.store(scores, [i, visible + rest], tir.f32(0.0))
        joined = tir.bind(tir.horizontal(total, lanes, lambda a, b: a + b))
        factor = tir.f32(1.0) / joined
        if self.guard:
            factor = tirx.Select(joined == tir.f32(0.0), tir.f32(0.0), factor)
        tir.store(scales, [i], factor)

    def _biased(self, value: Any, head: _Head, query: Any, key: Any) -> Any:
        if self.bias is None:
            return value
        at = [head.batch, head.number, query]
        where = [
            tir.const(0) if tir.static(extent) == 1 else index
            for index, extent in zip(at, self.bias.shape[:3], strict=True)
        ]
        last = tir.const(0) if tir.static(self.bias.shape[3]) == 1 else key
        return value + tir.load(self.bias, [*where, last])

    def _value_columns(self) -> int:
        """As many vectors of `v` as there are score vectors, but no wider than a head."""
        columns = self.decisions.columns
        while columns > self.value_depth and columns > 1:
            columns //= 2
        return columns

    def _values(
        self, head: _Head, scales: Any, start: Any, rows: int, limit: Any, at: Any, width: int
    ) -> None:
        """out[rows, at .. at + width] = S v * scale of the row."""
        lanes = min(width, self.decisions.lanes)
        vectors = width // lanes
        acc = tir.tile(rows, width)
        for i, column in tir.over_tile(rows, vectors, lanes):
            tir.store(acc[i], [column], tir.f32(0.0))
        with tir.serial(limit) as key:
            for i, column in tir.over_tile(rows, vectors, lanes):
                v = tir.load(head.values, [key, at + column])
                term = tir.load(head.scores, [tir.const(i), key]) * v
                tir.store(acc[i], [column], tir.load(acc[i], [column]) + term)
        for i, column in tir.over_tile(rows, vectors, lanes):
            value = tir.load(acc[i], [column]) * tir.load(scales, [tir.const(i)])
            place = [head.batch, start + tir.const(i), head.number, at + column]
            tir.store(self.out, place, value)
