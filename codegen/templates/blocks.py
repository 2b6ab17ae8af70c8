"""How a product C [M, N] is cut into register blocks, for any M, and in which order they are taken.

    for chunk of rows that stays in the last cache:     W is read from memory once for each chunk
      for panel of columns:                             A is read N / columns times
        for block of rows in the chunk                  the panel stays in the second cache

Blocks have `rows` rows; what is left is taken by blocks of `tail_rows`, of which the last overlaps
its neighbour (it computes the same values again), and by single rows when there are fewer. All of
it is one parallel loop: a thread takes an equal, contiguous share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.targets.target import Target

Body: TypeAlias = Callable[[Any, Any, int, Any], None]
"""body(first row, panel, number of rows, position of the block among those of panel and chunk)"""


@dataclass(frozen=True)
class RegisterBlock:
    """What a product template decides: `rows` x (`vectors` vectors of `lanes` accumulators).

    Rows that do not fill a block are taken by blocks of `tail_rows`. Each template has a class of
    its own, so that what prints and hashes names it.
    """

    template: ClassVar[str]

    rows: int
    vectors: int
    lanes: int
    tail_rows: int

    def __post_init__(self) -> None:
        assert self.rows >= self.tail_rows >= 1 and self.vectors >= 1 and self.lanes >= 1, self

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def __str__(self) -> str:
        return f"{self.template} {self.rows}x{self.columns}"


@dataclass(frozen=True)
class Cover:
    """`chunk` is the number of full blocks that are taken together."""

    rows: int
    tail_rows: int
    chunk: int

    def __post_init__(self) -> None:
        assert self.rows >= self.tail_rows >= 1 and self.chunk >= 1, self


def cover(target: Target, rows: int, tail_rows: int, row_bytes: int) -> Cover:
    """Chunks of rows, of `row_bytes` each in A, that take a quarter of the last cache.

    Smaller ones, for the second cache, were slower: reading W again costs more than reading A does.
    """
    budget = max(target.l2, target.l3 // 4)
    return Cover(rows, tail_rows, max(1, budget // (rows * row_bytes)))


def next_panel(own: Any, size: int, steps: int, columns: int, position: Any) -> Any:
    """Where the block at `position` starts to fetch the next panel, a line in each of its `steps`.

    A panel, `size` words from `own` on, has columns / 16 lines for each step, so that as many
    blocks fetch it; those after them touch their own panel again, which costs nothing.
    """
    parts = max(1, columns // tir.LINE_FLOATS)
    following = own + tir.const(size) + position * tir.const(steps * tir.LINE_FLOATS)
    return tir.bind(tirx.Select(position < tir.const(parts), following, own))


def each_block(count: Any, panels: int, shape: Cover, body: Body) -> None:
    """Emits `body` for all blocks of `count` rows and `panels` panels."""
    rows, tail_rows = tir.const(shape.rows), tir.const(shape.tail_rows)
    full = tir.let(count // rows)
    blocks = tir.let(full + (count - full * rows + tail_rows - tir.const(1)) // tail_rows)
    with tir.when(count >= tail_rows):
        with tir.then(), tir.parallel(blocks * tir.const(panels)) as task:
            together = tir.const(shape.chunk * panels)
            chunk = tir.bind(task // together)
            before = tir.bind(chunk * tir.const(shape.chunk))
            size = tir.bind(tirx.min(tir.const(shape.chunk), blocks - before))
            inside = tir.bind(task - chunk * together)
            panel, step = tir.bind(inside // size), tir.bind(inside % size)
            block = tir.bind(before + step)
            with tir.when(block < full):
                with tir.then():
                    body(tir.bind(block * rows), panel, shape.rows, step)
                with tir.otherwise():
                    start = full * rows + (block - full) * tail_rows
                    start = tir.bind(tirx.min(start, count - tail_rows))
                    body(start, panel, shape.tail_rows, step)
        with tir.otherwise(), tir.parallel(count * tir.const(panels)) as task:
            panel, row = tir.bind(task // count), tir.bind(task % count)
            body(row, panel, 1, row)
