"""Attention on devices, in one pass over the keys: softmax(scale q k^T + bias) v.

    q [b, s, h, d]   k [b, t, hk, d]   v [b, t, hk, dv]   bias [b|1, h|1, s|1, t]  ->  [b, s, h, dv]

A work-group has `rows` queries of one head and `lanes` threads for each. For every tile of keys:

    K [tile, d]     in shared memory, read by all queries
    s = q K^T       each thread has tile / lanes scores
    m' = max(m, s)  joined over the row's threads;  p = exp(s - m');  a = exp(m - m')
    l = a l + sum p;   out = a out + p V            each thread has dv / lanes columns

so that neither the [s, t] matrix nor a row of it is ever stored (Milakov and Gimelshein 2018, Dao
et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.gpu import threads
from graphc.targets.target import Device, Target

NAME = "gpu attention"
VERSION = 1


@dataclass(frozen=True)
class Decisions:
    """`rows` queries with `lanes` threads each; `tile` keys at a time."""

    rows: int
    lanes: int
    tile: int

    def shared_bytes(self, depth: int) -> int:
        """Queries, keys (a column more, so that rows lie in different banks), weights, partials."""
        rows = self.rows * (depth + self.tile + self.lanes)
        return 4 * (rows + self.tile * (depth + 1))

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.rows}x{self.tile}"


def default_decisions(device: Device, depth: int) -> Decisions | None:
    """The first that the device's threads and shared memory hold; None when none does."""
    for decisions in (Decisions(16, 16, 32), Decisions(8, 16, 32), Decisions(4, 16, 16)):
        size = decisions.rows * decisions.lanes
        if size <= device.max_threads and decisions.shared_bytes(depth) <= device.shared_bytes:
            return decisions
    return None


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """The composite graphc.attention in float32 with static head counts and sizes."""
    assert target.device is not None
    types = [a.ty for a in arguments]
    if any(str(ty.dtype) != "float32" or ty.ndim != 4 for ty in types):
        return None
    static = [tir.static(ty.shape[axis]) for ty in types[:3] for axis in (2, 3)]
    if any(size is None for size in static):
        return None
    decisions = default_decisions(target.device, int(types[0].shape[3]))
    if decisions is None:
        return None
    names = ["q", "k", "v", "bias", "out"] if len(types) == 4 else ["q", "k", "v", "out"]
    return _Attention(tir.fresh_buffers([*types, result], names), attrs, decisions).build()


class _Attention:
    """Writes the loops for one set of shapes."""

    def __init__(self, params: list[Any], attrs: Any, decisions: Decisions) -> None:
        self.params, self.decisions = params, decisions
        self.q, self.k, self.v, self.out = params[0], params[1], params[2], params[-1]
        self.bias = params[3] if len(params) == 5 else None
        self.scale = float(attrs["scale"])
        self.causal, self.guard = bool(attrs["causal"]), bool(attrs["guard"])
        self.batch, self.queries, self.heads, _ = self.q.shape
        self.depth, self.value_depth = int(self.q.shape[3]), int(self.v.shape[3])
        self.keys = self.k.shape[1]
        self.group = int(self.heads) // int(self.k.shape[2])
        self.columns = -(-self.value_depth // decisions.lanes)

    def build(self) -> tirx.PrimFunc:
        d = self.decisions
        blocks = (self.queries + tir.const(d.rows - 1)) // tir.const(d.rows)
        with (
            tir.function("attention", self.params, str(d)) as build,
            threads.group(self.batch * self.heads, "y") as pair,
            threads.group(blocks, "x") as block,
            threads.thread(d.rows, "y") as row,
            threads.thread(d.lanes, "x") as lane,
        ):
            self.place = (pair // self.heads, pair % self.heads)
            self.row, self.lane = row, lane
            query = block * tir.const(d.rows) + row
            self.inside = query < self.queries
            # A row beyond the last query computes what the last one does, and stores nothing.
            self.query = threads.bind(tirx.min(query, self.queries - tir.const(1)))
            self._queries()
        return build.get()

    def _queries(self) -> None:
        d = self.decisions
        self.shared_q = threads.shared([d.rows, self.depth])
        self.shared_k = threads.shared([d.tile, self.depth + 1])
        self.weights = threads.shared([d.rows, d.tile])
        self.partial = threads.shared([d.rows, d.lanes])
        self.acc = threads.private([self.columns])
        self.peak, self.total = threads.private([1]), threads.private([1])
        zero = [tir.const(0)]
        tir.store(self.peak, zero, tir.f32(float("-inf")))
        tir.store(self.total, zero, tir.f32(0.0))
        for column in range(self.columns):
            tir.store(self.acc, [tir.const(column)], tir.f32(0.0))
        batch, head = self.place
        for part in range(-(-self.depth // d.lanes)):
            at = self.lane + tir.const(part * d.lanes)
            with tir.when(at < tir.const(self.depth)), tir.then():
                value = tir.load(self.q, [batch, self.query, head, at])
                tir.store(self.shared_q, [self.row, at], value)
        tiles = (self.keys + tir.const(d.tile - 1)) // tir.const(d.tile)
        with tir.serial(tiles) as tile:
            self._tile(tile * tir.const(d.tile))
        self._store()

    def _tile(self, first: Any) -> None:
        zero = [tir.const(0)]
        self._fetch_keys(first)
        scores = self._scores(first)
        peak = self._joined(scores)
        # A row that has seen nothing but -inf: its weights are exp(-inf - 0) = 0.
        safe = threads.bind(tirx.Select(peak == tir.f32(float("-inf")), tir.f32(0.0), peak))
        alpha = threads.bind(tirx.exp(tir.load(self.peak, zero) - safe))
        tir.store(self.peak, zero, peak)
        for number, key in enumerate(self._own_keys()):
            weight = tirx.exp(tir.load(scores, [tir.const(number)]) - safe)
            tir.store(self.weights, [self.row, key], weight)
        tir.store(self.total, zero, tir.load(self.total, zero) * alpha)
        for column in range(self.columns):
            at = [tir.const(column)]
            tir.store(self.acc, at, tir.load(self.acc, at) * alpha)
        self._add_values(first)

    def _own_keys(self) -> list[Any]:
        """The places in the tile of the keys that this thread scores."""
        lanes = self.decisions.lanes
        return [self.lane + tir.const(j * lanes) for j in range(self.decisions.tile // lanes)]

    def _fetch_keys(self, first: Any) -> None:
        """All threads copy the tile; keys beyond the last are read as the last one."""
        d = self.decisions
        batch, head = self.place
        size, count = d.tile * self.depth, d.rows * d.lanes
        for part in range(-(-size // count)):
            index = self.row * tir.const(d.lanes) + self.lane + tir.const(part * count)
            with tir.when(index < tir.const(size)), tir.then():
                key, at = index // tir.const(self.depth), index % tir.const(self.depth)
                source = tirx.min(first + key, self.keys - tir.const(1))
                value = tir.load(self.k, [batch, source, self._key_head(head), at])
                tir.store(self.shared_k, [key, at], value)

    def _key_head(self, head: Any) -> Any:
        return head if self.group == 1 else head // tir.const(self.group)

    def _scores(self, first: Any) -> Any:
        own = self._own_keys()
        scores = threads.private([len(own)])
        for number in range(len(own)):
            tir.store(scores, [tir.const(number)], tir.f32(0.0))
        with tir.serial(self.depth) as at:
            q = tir.load(self.shared_q, [self.row, at])
            for number, key in enumerate(own):
                term = q * tir.load(self.shared_k, [key, at])
                place = [tir.const(number)]
                tir.store(scores, place, tir.load(scores, place) + term)
        for number, key in enumerate(own):
            place, position = [tir.const(number)], first + key
            value = tir.load(scores, place) * tir.f32(self.scale)
            seen = position < self.keys
            if self.causal:
                seen = tirx.all(seen, position <= self.query + (self.keys - self.queries))
            biased = tirx.if_then_else(seen, self._biased(value, position), tir.f32(float("-inf")))
            tir.store(scores, place, biased)
        return scores

    def _biased(self, value: Any, key: Any) -> Any:
        if self.bias is None:
            return value
        indices = [*self.place, self.query, key]
        where = [
            tir.const(0) if tir.static(extent) == 1 else index
            for index, extent in zip(indices, self.bias.shape, strict=True)
        ]
        return value + tir.load(self.bias, where)

    def _joined(self, scores: Any) -> Any:
        """The row's highest score so far, this tile's included, known to all its threads."""
        zero = [tir.const(0)]
        highest = threads.private([1])
        tir.store(highest, zero, tir.load(self.peak, zero))
        for number in range(len(self._own_keys())):
            score = tir.load(scores, [tir.const(number)])
            tir.store(highest, zero, tirx.max(tir.load(highest, zero), score))
        tir.store(self.partial, [self.row, self.lane], tir.load(highest, zero))
        with tir.serial(self.decisions.lanes) as other:
            value = tir.load(self.partial, [self.row, other])
            tir.store(highest, zero, tirx.max(tir.load(highest, zero), value))
        return tir.load(highest, zero)

    def _add_values(self, first: Any) -> None:
        """out += p V and l += sum p; beyond the last key weights are 0, values the last one's."""
        batch, head = self.place
        zero = [tir.const(0)]
        with tir.serial(self.decisions.tile) as key:
            weight = threads.bind(tir.load(self.weights, [self.row, key]))
            tir.store(self.total, zero, tir.load(self.total, zero) + weight)
            source = tirx.min(first + key, self.keys - tir.const(1))
            for column in range(self.columns):
                at = self.lane + tir.const(column * self.decisions.lanes)
                at = tirx.min(at, tir.const(self.value_depth - 1))
                value = tir.load(self.v, [batch, source, self._key_head(head), at])
                place = [tir.const(column)]
                tir.store(self.acc, place, tir.load(self.acc, place) + weight * value)

    def _store(self) -> None:
        batch, head = self.place
        zero = [tir.const(0)]
        total = tir.load(self.total, zero)
        factor = tir.f32(1.0) / total
        if self.guard:
            factor = tirx.Select(total == tir.f32(0.0), tir.f32(0.0), factor)
        factor = threads.bind(factor)
        for column in range(self.columns):
            at = self.lane + tir.const(column * self.decisions.lanes)
            inside = tirx.all(self.inside, at < tir.const(self.value_depth))
            with tir.when(inside), tir.then():
                value = tir.load(self.acc, [tir.const(column)]) * factor
                tir.store(self.out, [batch, self.query, head, at], value)
