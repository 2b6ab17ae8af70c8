"""The results of paged attention: accumulators over their sums, joined where keys were split."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.paged_problem import Decisions, Problem
from graphc.codegen.templates.paged_tiles import MINUS_INFINITY, Unit
from graphc.codegen.templates.paged_units import Units

HIGHEST, TOTAL = 0, 1


class Results:
    """Writes `out`, or parts [part, group, dv] with their maxima and sums [part, 2, group]."""

    def __init__(
        self, problem: Problem, decisions: Decisions, buffers: dict[str, Any], units: Units
    ) -> None:
        self.problem, self.lanes, self.units = problem, decisions.lanes, units
        self.out, self.sinks = buffers["out"], buffers.get("sinks")
        self.parts = tir.workspace([units.most_parts, problem.group, problem.width])
        self.sums = tir.workspace([units.most_parts, 2, problem.group])

    def finish(self, unit: Unit) -> None:
        """out = acc / sum for the rows that are the unit's own."""
        with tir.serial(unit.tokens * tir.const(self.problem.group)) as row:
            token, head = unit.place(row)
            highest, total = tir.load(unit.highest, [row]), tir.load(unit.total, [row])
            factor = tir.bind(self._normaliser(highest, total, head))

            def write(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    value = tir.load(unit.acc, [row, at + lane]) * factor
                    tir.store(self.out, [token, head, at + lane], value)

            tir.lanes_over(self.problem.width, self.lanes, write)

    def _normaliser(self, highest: Any, total: Any, head: Any) -> Any:
        """1 / (sum + exp(sink - maximum)); a sink far above all scores gives 0, never NaN."""
        if self.sinks is None:
            return tir.f32(1.0) / total
        return tir.f32(1.0) / (total + tirx.exp(tir.load(self.sinks, [head]) - highest))

    def keep(self, unit: Unit, part: Any) -> None:
        """The unit's accumulators, maximum and sum, for `join`."""
        part = tir.bind(part)
        with tir.serial(self.problem.group) as row:
            for number, buffer in ((HIGHEST, unit.highest), (TOTAL, unit.total)):
                tir.store(self.sums, [part, tir.const(number), row], tir.load(buffer, [row]))

            def write(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    place = [part, row, at + lane]
                    tir.store(self.parts, place, tir.load(unit.acc, [row, at + lane]))

            tir.lanes_over(self.problem.width, self.lanes, write)

    def join(self) -> None:
        """Sums up the parts of every sequence whose keys were split."""
        units, heads = self.units, tir.const(self.problem.keys.heads)
        any_parts = units.first_part(units.sequences) > tir.const(0)
        with tir.when(any_parts), tir.then(), tir.parallel(units.sequences * heads) as pair:
            s, head = tir.bind(pair // heads), tir.bind(pair % heads)
            start = tir.bind(units.first_part(s))
            parts = tir.bind(units.first_part(s + tir.const(1)) - start)
            with tir.when(parts > tir.const(0)), tir.then():
                first, count = tir.bind(start + head), tir.bind(parts // heads)
                token = tir.bind(units.first_token(s))
                with tir.serial(self.problem.group) as row:
                    self._join_row(token, head, row, first, count)

    def _join_row(self, token: Any, head: Any, row: Any, first: Any, count: Any) -> None:
        """acc = sum of acc_i exp(max_i - max), over sum of sum_i exp(max_i - max)."""
        heads = tir.const(self.problem.keys.heads)
        query_head = tir.bind(head * tir.const(self.problem.group) + row)

        def highest(number: Any) -> list[Any]:
            return [first + number * heads, tir.const(HIGHEST), row]

        def total(number: Any) -> list[Any]:
            return [first + number * heads, tir.const(TOTAL), row]

        peak, joined, place = tir.local([1]), tir.local([1]), [tir.const(0)]
        tir.store(peak, place, tir.f32(MINUS_INFINITY))
        tir.store(joined, place, tir.f32(0.0))
        with tir.serial(count) as number:
            value = tir.load(self.sums, highest(number))
            tir.store(peak, place, tirx.max(tir.load(peak, place), value))
        with tir.serial(count) as number:
            factor = tirx.exp(tir.load(self.sums, highest(number)) - tir.load(peak, place))
            value = tir.load(self.sums, total(number)) * factor
            tir.store(joined, place, tir.load(joined, place) + value)
            tir.store(self.sums, total(number), factor)  # what the next loop weighs the part by
        factor = self._normaliser(tir.load(peak, place), tir.load(joined, place), query_head)
        factor = tir.bind(factor)

        def write(at: Any, width: int) -> None:
            acc = tir.local([width])
            tir.fill(acc, width, tir.f32(0.0))
            with tir.serial(count) as number:
                weight = tir.bind(tir.load(self.sums, total(number)) * factor)
                with tir.vector(width) as lane:
                    value = tir.load(self.parts, [first + number * heads, row, at + lane])
                    tir.store(acc, [lane], tir.load(acc, [lane]) + value * weight)
            with tir.vector(width) as lane:
                tir.store(self.out, [token, query_head, at + lane], tir.load(acc, [lane]))

        tir.lanes_over(self.problem.width, self.lanes, write)
