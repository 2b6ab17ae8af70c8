"""What paged attention is asked to compute, and the decisions that its loops are written by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphc.codegen import builder as tir
from graphc.codegen.templates.pages import PAGE, Pages, of_cache
from graphc.targets.target import Target

NAME = "paged_attention"
VERSION = 1


@dataclass(frozen=True)
class Decisions:
    """Register block of scores: `rows` x (`pages` pages of 16 keys).

    tile: keys that a unit handles at a time; chunk_rows: rows of a unit of a longer chunk;
    split_keys: the fewest keys that a split is worth; units_each: units wanted for each of the
    `threads`; ahead: how many pages before its use a page is asked for, since no hardware
    prefetcher follows a page table.
    """

    rows: int
    pages: int
    lanes: int
    threads: int
    tile: int = 128
    chunk_rows: int = 48
    split_keys: int = 128
    units_each: int = 8
    ahead: int = 4

    def __post_init__(self) -> None:
        assert self.tile % (self.pages * PAGE) == 0 and PAGE % self.lanes == 0, self

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.rows}x{self.pages * PAGE} tile {self.tile}"


def default_decisions(target: Target) -> Decisions:
    """24 accumulators where there are 32 registers, 12 where there are 16."""
    lanes = min(target.lanes(32), PAGE)
    if target.vector_bits >= 512:
        return Decisions(rows=6, pages=4, lanes=lanes, threads=target.threads)
    return Decisions(rows=12 * lanes // PAGE, pages=1, lanes=lanes, threads=target.threads)


@dataclass(frozen=True)
class Problem:
    """What is fixed while compiling: see graphc.passes.paged for the operator."""

    heads: int
    depth: int
    width: int
    keys: Pages
    values: Pages
    scale: float
    window: int
    softcap: float
    has_slopes: bool
    has_sinks: bool

    @property
    def group(self) -> int:
        """Query heads for each key head."""
        return self.heads // self.keys.heads

    @property
    def operands(self) -> list[str]:
        """The names of the operands, in order."""
        names = ["q", "keys", "values", "starts", "lengths", "table"]
        return names + ["slopes"] * self.has_slopes + ["sinks"] * self.has_sinks

    def low(self, limit: Any) -> Any:
        """The first key that a row sees which sees the keys below `limit`."""
        if not self.window:
            return tir.const(0)
        return tir.at_least(limit - tir.const(self.window), 0)


def read_problem(types: Sequence[Any], attrs: Mapping[str, Any]) -> Problem | None:
    """The problem of a call; None when heads and widths are not known or no kernel takes them."""
    keys = of_cache(types[1], str(attrs.get("key_order", "rows")))
    values = of_cache(types[2], str(attrs.get("value_order", "rows")))
    heads, depth = (tir.static(extent) for extent in list(types[0].shape)[1:])
    if keys is None or values is None or heads is None or depth is None:
        return None
    if str(types[0].dtype) != "float32" or heads % keys.heads or keys.heads != values.heads:
        return None
    return Problem(
        heads,
        depth,
        int(attrs["width"]),
        keys,
        values,
        float(attrs["scale"]),
        int(attrs["window"]),
        float(attrs["softcap"]),
        bool(attrs["has_slopes"]),
        bool(attrs["has_sinks"]),
    )
