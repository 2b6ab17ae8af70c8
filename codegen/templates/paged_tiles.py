"""The inner loops of paged attention: one unit against its keys and values, a tile at a time."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.paged_problem import Decisions, Problem
from graphc.codegen.templates.paged_stage import Caches
from graphc.codegen.templates.pages import PAGE

MINUS_INFINITY = float("-inf")


class Unit:
    """What one unit knows, and its scratch memory for `blocks` blocks of `rows` rows.

    Row r is token first + r // group under query head head * group + r % group. `most` is the
    largest number of rows. Keys and values may be staged in float32 tiles; `ahead` is how many
    pages ahead the others are asked for.
    """

    def __init__(
        self,
        problem: Problem,
        decisions: Decisions,
        sequence: Any,
        head: Any,
        first: Any,
        length: Any,
        tokens: Any,
        *,
        rows: int,
        blocks: Any,
        most: int,
        stage_keys: bool = False,
        stage_values: bool = False,
        ahead: int = 0,
    ) -> None:
        self.sequence, self.head, self.first = sequence, head, first
        self.length, self.tokens = length, tokens
        self.rows, self.blocks, self.ahead = rows, blocks, ahead
        self._group = tir.const(problem.group)
        self.q = tir.workspace([most, problem.depth])
        self.acc = tir.workspace([most, problem.width])
        self.scores = tir.workspace([rows, decisions.tile])
        self.highest, self.total = tir.local([most]), tir.local([most])
        self.limits = tir.local([most], "int64")  # keys that a row sees, from the first on
        self.factors = tir.local([rows])
        tile = decisions.tile
        self.keys = tir.workspace([tile // PAGE, problem.depth * PAGE]) if stage_keys else None
        self.values = tir.workspace([tile, problem.width]) if stage_values else None

    def place(self, row: Any) -> tuple[Any, Any]:
        """Token and query head of a row."""
        return self.first + row // self._group, self.head * self._group + row % self._group


class Tiles:
    """Emits the loops of a unit over its keys."""

    def __init__(self, problem: Problem, decisions: Decisions, buffers: dict[str, Any]) -> None:
        self.problem, self.decisions, self.buffers = problem, decisions, buffers
        self.lanes = decisions.lanes
        self.caches = Caches(problem, decisions, buffers)

    def attend(self, unit: Unit, limit: Any, low: Any, high: Any) -> None:
        """All keys from `low`, where a page begins, to `high`; `limit` is the first token's."""
        self._begin(unit, limit)
        tile = tir.const(self.decisions.tile)
        with tir.serial((high - low + tile - tir.const(1)) // tile) as number:
            base = tir.bind(low + number * tile)
            keys = tir.bind(tirx.min(high - base, tile))
            self.caches.stage(unit, base, keys)
            with tir.serial(unit.blocks) as block:
                row = tir.bind(block * tir.const(unit.rows))
                # Later rows see more: keys after the block's last row are for later blocks.
                end = tir.load(unit.limits, [row + tir.const(unit.rows - 1)])
                seen = tir.bind(tirx.min(keys, end - base))
                with tir.when(seen > tir.const(0)), tir.then():
                    self._block(unit, row, base, seen)

    def _block(self, unit: Unit, row: Any, base: Any, seen: Any) -> None:
        self._scores(unit, row, base, seen)
        with tir.serial(unit.rows) as i:
            self._softmax(unit, row, i, base, seen)

        def add(at: Any, width: int) -> None:
            self._values(unit, row, base, seen, at, width)

        columns = self.decisions.pages * PAGE  # as many vectors of values as of scores
        while columns > self.problem.width and columns > 1:
            columns //= 2
        tir.lanes_over(self.problem.width, columns, add)

    def _begin(self, unit: Unit, limit: Any) -> None:
        """Q, and empty sums; rows after the last repeat it, and are computed in vain."""
        problem = self.problem
        group = tir.const(problem.group)
        last = tir.bind(unit.tokens * group - tir.const(1))
        with tir.serial(unit.blocks * tir.const(unit.rows)) as row:
            real = tir.bind(tirx.min(row, last))
            token, head = unit.place(real)
            tir.store(unit.limits, [row], limit + real // group)
            tir.store(unit.highest, [row], tir.f32(MINUS_INFINITY))
            tir.store(unit.total, [row], tir.f32(0.0))

            def load_query(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    value = tir.load(self.buffers["q"], [token, head, at + lane])
                    tir.store(unit.q, [row, at + lane], value * tir.f32(problem.scale))

            def clear(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    tir.store(unit.acc, [row, at + lane], tir.f32(0.0))

            tir.lanes_over(problem.depth, self.lanes, load_query)
            tir.lanes_over(problem.width, self.lanes, clear)

    # S = Q K

    def _scores(self, unit: Unit, row: Any, base: Any, seen: Any) -> None:
        """Whole register blocks: scores of keys that a row does not see are garbage."""
        count, ahead = self.decisions.pages, unit.ahead
        columns = count * PAGE
        with tir.serial((seen + tir.const(columns - 1)) // tir.const(columns)) as block:
            numbers = [tir.bind(block * tir.const(count) + tir.const(p)) for p in range(count)]
            pages = [self.caches.page(unit, base // PAGE + n) for n in numbers]
            later = [self.caches.page(unit, base // PAGE + n + ahead) for n in numbers if ahead]
            acc = [tir.tile(count, PAGE) for _ in range(unit.rows)]
            for i in range(unit.rows):
                for p, at in tir.over_tile(count, PAGE // self.lanes, self.lanes):
                    tir.store(acc[i][p], [at], tir.f32(0.0))
            with tir.serial(self.problem.depth) as feature:
                if unit.keys is None:
                    for page in later:
                        self.caches.prefetch_key(page, unit.head, feature)
                for p, at in tir.over_tile(count, PAGE // self.lanes, self.lanes):
                    key = self.caches.key(unit, numbers[p], pages[p], at, feature)
                    for i in range(unit.rows):
                        q = tir.load(unit.q, [row + tir.const(i), feature])
                        tir.store(acc[i][p], [at], tir.load(acc[i][p], [at]) + q * key)
            for i in range(unit.rows):
                for p, at in tir.over_tile(count, PAGE // self.lanes, self.lanes):
                    score = self.caches.scaled(unit, tir.load(acc[i][p], [at]), pages[p], at)
                    place = [tir.const(i), numbers[p] * tir.const(PAGE) + at]
                    tir.store(unit.scores, place, score)

    # S = exp(S - maximum)

    def _softmax(self, unit: Unit, row: Any, i: Any, base: Any, seen: Any) -> None:
        at_row, lanes = [row + i], self.lanes
        vectors = tir.bind((seen + tir.const(lanes - 1)) // tir.const(lanes))
        highest = self._masked(unit, row + i, i, base, vectors)
        old = tir.bind(tir.load(unit.highest, at_row))
        peak = tir.bind(tirx.max(old, highest))
        # A row that has seen nothing yet: exp(-inf - 0) is 0 where exp(-inf + inf) is NaN.
        none = peak == tir.f32(MINUS_INFINITY)
        shift = tir.bind(tirx.Select(none, tir.f32(0.0), peak))
        factor = tir.bind(tirx.exp(old - shift))
        total = tir.local([lanes])
        tir.fill(total, lanes, tir.f32(0.0))
        with tir.serial(vectors) as number:
            start = tir.bind(number * tir.const(lanes))
            power = tir.local([lanes])
            with tir.vector(lanes) as lane:
                score = tir.load(unit.scores, [i, start + lane])
                tir.store(power, [lane], tirx.exp(score - shift))
            with tir.vector(lanes) as lane:
                tir.store(total, [lane], tir.load(total, [lane]) + tir.load(power, [lane]))
            with tir.vector(lanes) as lane:
                tir.store(unit.scores, [i, start + lane], tir.load(power, [lane]))
        joined = tir.horizontal(total, lanes, lambda a, b: a + b)
        tir.store(unit.total, at_row, tir.load(unit.total, at_row) * factor + joined)
        tir.store(unit.highest, at_row, peak)
        tir.store(unit.factors, [i], factor)

    def _masked(self, unit: Unit, row: Any, i: Any, base: Any, vectors: Any) -> Any:
        """Shapes a row's scores, hides what it does not see; its maximum."""
        lanes, scores = self.lanes, unit.scores
        limit = tir.bind(tir.load(unit.limits, [row]))
        low = tir.bind(self.problem.low(limit))
        slope = None
        if self.problem.has_slopes:
            head = tirx.min(unit.place(row)[1], tir.const(self.problem.heads - 1))
            slope = tir.bind(tir.load(self.buffers["slopes"], [head]))
        highest = tir.local([lanes])
        tir.fill(highest, lanes, tir.f32(MINUS_INFINITY))
        with tir.serial(vectors) as number:
            start = tir.bind(number * tir.const(lanes))
            # 32-bit integers, relative to the vector: 64-bit ones would take two registers.
            end = tir.bind(tirx.Cast("int32", limit - (base + start)))
            first = tir.bind(tirx.Cast("int32", low - (base + start)))
            with tir.vector(lanes) as lane:
                key = tirx.Cast("int32", lane)
                score = self._shaped(tir.load(scores, [i, start + lane]), slope, key - end)
                seen = key < end
                if self.problem.window:
                    seen = tirx.And(seen, key >= first)
                score = tirx.Select(seen, score, tir.f32(MINUS_INFINITY))
                tir.store(scores, [i, start + lane], score)
            with tir.vector(lanes) as lane:
                joined = tirx.max(tir.load(highest, [lane]), tir.load(scores, [i, start + lane]))
                tir.store(highest, [lane], joined)
        return tir.bind(tir.horizontal(highest, lanes, tirx.max))

    def _shaped(self, score: Any, slope: Any, behind: Any) -> Any:
        """`behind` is -1 for the row's own token, -2 for the one before."""
        cap = self.problem.softcap
        if cap:
            score = tirx.tanh(score * tir.f32(1.0 / cap)) * tir.f32(cap)
        if slope is not None:
            score = score + slope * tirx.Cast("float32", behind + tirx.IntImm("int32", 1))
        return score

    # acc = acc * factor + S V

    def _values(self, unit: Unit, row: Any, base: Any, seen: Any, at: Any, width: int) -> None:
        """The columns at .. at + width of a block of rows."""
        lanes = min(width, self.lanes)
        vectors = width // lanes
        acc = tir.tile(unit.rows, width)
        for i, column in tir.over_tile(unit.rows, vectors, lanes):
            tir.store(acc[i], [column], tir.f32(0.0))
        with tir.serial((seen + tir.const(PAGE - 1)) // PAGE) as number:
            first = tir.bind(number * tir.const(PAGE))
            page = self.caches.page(unit, base // PAGE + number)
            later = self.caches.page(unit, base // PAGE + number + tir.const(unit.ahead))
            # Not a key more: what lies after the last one may be anything, and 0 * NaN is NaN.
            with tir.serial(tirx.min(seen - first, tir.const(PAGE))) as key:
                if unit.values is None and unit.ahead:
                    self.caches.prefetch_value(later, unit.head, key, at, width)
                weigh = self._weights(unit, first + key, page, key)
                for v in range(vectors):
                    with tir.vector(lanes) as lane:
                        column = tir.const(v * lanes) + lane
                        value = self.caches.value(unit, first, page, key, at + column)
                        for i, weight in enumerate(weigh):
                            term = tir.load(acc[i], [column]) + weight * value
                            tir.store(acc[i], [column], term)
        for i, column in tir.over_tile(unit.rows, vectors, lanes):
            place = [row + tir.const(i), at + column]
            old = tir.load(unit.acc, place) * tir.load(unit.factors, [tir.const(i)])
            tir.store(unit.acc, place, old + tir.load(acc[i], [column]))

    def _weights(self, unit: Unit, at: Any, page: Any, key: Any) -> list[Any]:
        """What each row weighs a key's value by, the scale of its codes included."""
        scale = self.caches.value_scale(unit, page, key)
        weights = [tir.load(unit.scores, [tir.const(i), at]) for i in range(unit.rows)]
        return [tir.bind(w if scale is None else w * scale) for w in weights]
