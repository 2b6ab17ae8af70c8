"""Flash attention over pages, for any mix of prefill chunks and single tokens, in one kernel.

    q [t, h, d]   keys, values: caches in pages of 16 tokens   ->   out [t, h, dv]

    a unit = one sequence, one key head, some of its new tokens, a range of keys
    for unit in parallel:
      Q [rows, d] = scale * q: each of the unit's tokens x the query heads of the key head
      for a tile of 128 keys:                 each key and value is read once for all rows
        for a block of rows:
          S [rows, 128] = Q K                 register blocks of rows x pages
          S             = exp(S - row maximum), running maximum and sum
          acc           = acc * exp(old - new maximum) + S V
      out = acc / sum                         or a partial result, where keys were split
    for sequence, key head in parallel: joins the partial results of split keys

A sequence with one new token is split over its keys until there are units for all threads; longer
chunks are split over their tokens. Units of a mixed batch lie in one list that the workers
take in turns, so that neither ragged lengths nor the causal triangle leave a thread idle.
Sources: Dao, FlashAttention-2 (2023), and flash-decoding; pages as in Kwon et al. (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.paged_problem import (
    NAME,
    Decisions,
    Problem,
    default_decisions,
    read_problem,
)
from graphc.codegen.templates.paged_results import Results
from graphc.codegen.templates.paged_tiles import Tiles, Unit
from graphc.codegen.templates.paged_units import Units
from graphc.codegen.templates.pages import PAGE
from graphc.targets.target import Target


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """The composite graphc.paged_attention; key_order and value_order say how the caches lie."""
    types = [a.ty for a in arguments]
    problem = read_problem(types, attrs)
    if problem is None:
        return None
    names = [*problem.operands, "out"]
    params = tir.fresh_buffers([*types, result], names)
    buffers = dict(zip(names, params, strict=True))
    return _PagedAttention(problem, buffers, default_decisions(target)).build()


class _PagedAttention:
    """Writes the loops for one problem."""

    def __init__(self, problem: Problem, buffers: dict[str, Any], decisions: Decisions) -> None:
        self.problem, self.buffers, self.decisions = problem, buffers, decisions

    def build(self) -> tirx.PrimFunc:
        params = list(self.buffers.values())
        with tir.function(NAME, params, str(self.decisions)) as build:
            starts, lengths = self.buffers["starts"], self.buffers["lengths"]
            units = Units(self.problem, self.decisions, starts, lengths)
            tiles = Tiles(self.problem, self.decisions, self.buffers)
            results = Results(self.problem, self.decisions, self.buffers, units)
            with units.in_turns() as number:
                self._unit(units, tiles, results, number)
            results.join()
        return build.get().with_attr("graphc.own_buffers", True)

    def _unit(self, units: Units, tiles: Tiles, results: Results, number: Any) -> None:
        heads = tir.const(self.problem.keys.heads)
        s = units.owner(number)
        own = tir.bind(number - units.first_unit(s))
        head, part = tir.bind(own % heads), tir.bind(own // heads)
        length, new = tir.bind(units.length(s)), tir.bind(units.new(s))
        first = tir.bind(units.first_token(s))
        with tir.when(new == tir.const(1)):
            with tir.then():
                unit = self._single(s, head, first, length)
                low = tir.bind(self.problem.low(length) // PAGE * PAGE + part * units.split)
                high = tir.bind(tirx.min(length, low + units.split))
                tiles.attend(unit, length, low, high)
                splits = tir.bind(units.splits(s))
                with tir.when(splits > tir.const(1)):
                    with tir.then():
                        results.keep(unit, units.first_part(s) + own)
                    with tir.otherwise():
                        results.finish(unit)
            with tir.otherwise():
                start = tir.bind(part * tir.const(units.tokens))
                tokens = tir.bind(tirx.min(new - start, tir.const(units.tokens)))
                unit = self._block(s, head, tir.bind(first + start), length, tokens, units.tokens)
                limit = tir.bind(length - new + start + tir.const(1))  # of the first token
                low = tir.bind(self.problem.low(limit) // PAGE * PAGE)
                tiles.attend(unit, limit, low, tir.bind(limit + tokens - tir.const(1)))
                results.finish(unit)

    def _single(self, s: Any, head: Any, first: Any, length: Any) -> Unit:
        """One token: its rows are the group of query heads, in equal blocks."""
        group = self.problem.group
        blocks = -(-group // self.decisions.rows)
        rows = -(-group // blocks)
        stage_keys = self.problem.keys.order != "keys"
        return Unit(
            *(self.problem, self.decisions, s, head, first, length, tir.const(1)),
            rows=rows,
            blocks=tir.const(blocks),
            most=rows * blocks,
            stage_keys=stage_keys,
            ahead=self.decisions.ahead,
        )

    def _block(
        self, s: Any, head: Any, first: Any, length: Any, tokens: Any, most_tokens: int
    ) -> Unit:
        """Several tokens; what is not float32 is converted once for all blocks of rows."""
        problem, rows = self.problem, self.decisions.rows
        count = tokens * tir.const(problem.group)
        return Unit(
            *(problem, self.decisions, s, head, first, length, tokens),
            rows=rows,
            blocks=tir.bind((count + tir.const(rows - 1)) // tir.const(rows)),
            most=-(-most_tokens * problem.group // rows) * rows,
            stage_keys=problem.keys.order != "keys" or problem.keys.dtype != "float32",
            stage_values=problem.values.dtype != "float32",
        )
