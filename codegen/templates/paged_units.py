"""The list of units that a batch of sequences is cut into, made by the kernel itself.

one new token:    key heads x splits of its keys, a split being so long that all threads of all
                  sequences together get `units_each` units each
a longer chunk:   key heads x blocks of its tokens

plan [n + 1] first unit of each sequence   [n + 1] first partial result   [1] keys of a split
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.paged_problem import Decisions, Problem
from graphc.codegen.templates.pages import PAGE


class Units:
    """Emits the plan when it is made; after that it answers from it."""

    def __init__(self, problem: Problem, decisions: Decisions, starts: Any, lengths: Any) -> None:
        self.problem, self.decisions = problem, decisions
        self._starts, self._lengths = starts, lengths
        self.sequences = lengths.shape[0]
        self.tokens = max(decisions.chunk_rows // problem.group, 1)  # of a unit
        self._plan = tir.workspace([self.sequences * tir.const(2) + tir.const(3)], "int64")
        self._choose_split()
        self._count()
        self.total = tir.let(self.first_unit(self.sequences))

    @property
    def most_parts(self) -> Any:
        """How many partial results there can be.

        A sequence has seen / split + 1 splits, and all that is seen is at most wanted / heads
        times the split.
        """
        heads = tir.const(self.problem.keys.heads)
        return self.sequences * heads + tir.const(self._wanted) + heads

    def first_unit(self, s: Any) -> Any:
        return tir.load(self._plan, [s])

    def first_part(self, s: Any) -> Any:
        return tir.load(self._plan, [self.sequences + tir.const(1) + s])

    @property
    def split(self) -> Any:
        """Keys of a split."""
        return tir.load(self._plan, [self._last])

    def new(self, s: Any) -> Any:
        """New tokens of a sequence."""
        ends = tir.load(self._starts, [s + tir.const(1)])
        return tirx.Cast("int64", ends - tir.load(self._starts, [s]))

    def first_token(self, s: Any) -> Any:
        """Of a sequence, among all tokens of the step."""
        return tirx.Cast("int64", tir.load(self._starts, [s]))

    def length(self, s: Any) -> Any:
        return tirx.Cast("int64", tir.load(self._lengths, [s]))

    def splits(self, s: Any) -> Any:
        """Parts that the keys of a sequence are split into: more than one for a single token."""
        splits = (self._seen(s) + self.split - tir.const(1)) // self.split
        return tirx.Select(self.new(s) == tir.const(1), splits, tir.const(1))

    def owner(self, number: Any) -> Any:
        """The sequence of a unit."""
        owner, place = tir.local([1], "int64"), [tir.const(0)]
        tir.store(owner, place, tir.const(0))
        with tir.serial(self.sequences) as s:
            passed = self.first_unit(s + tir.const(1)) <= number
            tir.store(owner, place, tir.load(owner, place) + tirx.Cast("int64", passed))
        return tir.load(owner, place)

    @contextmanager
    def in_turns(self) -> Iterator[Any]:
        """All units, in parallel: worker w of W takes the units w, w + W, w + 2 W, ..."""
        each, threads = tir.const(self.decisions.units_each), tir.const(self.decisions.threads)
        workers = tir.const(self._wanted)
        with tir.parallel(self._wanted) as worker:
            # A thread gets workers that are neighbours: what is left over at the end of the list
            # must not all go to the same thread.
            first = tir.bind(worker % each * threads + worker // each)
            turns = (self.total - first + workers - tir.const(1)) // workers
            with tir.serial(turns) as turn:
                yield tir.bind(first + turn * workers)

    @property
    def _wanted(self) -> int:
        return self.decisions.units_each * self.decisions.threads

    @property
    def _last(self) -> Any:
        return self.sequences * tir.const(2) + tir.const(2)

    def _seen(self, s: Any) -> Any:
        """Keys of the pages that the last token of a sequence looks into."""
        length = self.length(s)
        return length - self.problem.low(length) // PAGE * PAGE

    def _choose_split(self) -> None:
        plan, last = self._plan, [self._last]
        tir.store(plan, last, tir.const(0))
        with tir.serial(self.sequences) as s:
            single = tirx.Cast("int64", self.new(s) == tir.const(1))
            tir.store(plan, last, tir.load(plan, last) + self._seen(s) * single)
        wanted = tir.const(self._wanted)
        work = tir.load(plan, last) * tir.const(self.problem.keys.heads)
        keys = (work + wanted - tir.const(1)) // wanted
        keys = (keys + tir.const(PAGE - 1)) // PAGE * PAGE
        tir.store(plan, last, tir.at_least(keys, self.decisions.split_keys))

    def _count(self) -> None:
        plan, n = self._plan, self.sequences
        heads, tokens = tir.const(self.problem.keys.heads), tir.const(self.tokens)
        tir.store(plan, [tir.const(0)], tir.const(0))
        tir.store(plan, [n + tir.const(1)], tir.const(0))
        with tir.serial(n) as s:
            splits, new = tir.bind(self.splits(s)), tir.bind(self.new(s))
            blocks = (new + tokens - tir.const(1)) // tokens
            units = tir.bind(tirx.Select(new == tir.const(1), splits, blocks) * heads)
            parts = tirx.Select(splits > tir.const(1), units, tir.const(0))
            after = s + tir.const(1)
            tir.store(plan, [after], self.first_unit(s) + units)
            tir.store(plan, [n + tir.const(1) + after], self.first_part(s) + parts)
