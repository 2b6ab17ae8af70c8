"""Where a dataflow is interrupted: points that bind dimensions, and regions run at points.

While a model is imported, everything is emitted in one dataflow in which a point is a call of
"graphc.flow" with the point's number. `split.py` makes a program of it when the import is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import relax, tirx

from graphc.ir import Constraint, Expr

FLOW = "graphc.flow"
"""What points call: the packed function's name; its first argument is the point's number."""


@dataclass
class Region:
    """A branch or the body of a loop: bindings over its `params` and what is bound outside."""

    params: list[relax.Var] = field(default_factory=list)
    bindings: list[Any] = field(default_factory=list)
    results: list[relax.Var] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)


@dataclass(frozen=True)
class BindPoint:
    """Dimensions become the elements of the call's tensor."""

    dims: tuple[tirx.Var, ...]
    where: str


@dataclass(frozen=True)
class BranchPoint:
    """Which region is run depends on the call's first tensor; `dims` are where results differ."""

    regions: tuple[Region, Region]
    dims: tuple[tirx.Var, ...]
    extents: tuple[tuple[Expr, ...], tuple[Expr, ...]]
    where: str


@dataclass(frozen=True)
class LoopPoint:
    """As graphc.flow.Loop; the call's tensors begin with the initial values.

    With `conditional`, the last of the initial values, and the first of the region's results, is
    the condition.
    """

    limit: Expr
    conditional: bool
    step: tirx.Var
    inner_dims: tuple[tirx.Var, ...]
    initial_extents: tuple[Expr, ...]
    next_extents: tuple[Expr, ...]
    region: Region
    observed: tuple[tuple[tirx.Var, Expr], ...]
    stacked: int
    dims: tuple[tirx.Var, ...]
    outer_extents: tuple[Expr, ...]
    where: str

    @property
    def carried(self) -> int:
        """How many values are carried."""
        return len(self.region.params)


Point = BindPoint | BranchPoint | LoopPoint


def dims_of(point: Point) -> tuple[tirx.Var, ...]:
    """The dimensions that are known after a point and not before."""
    if isinstance(point, LoopPoint):
        return (*point.dims, *(dim for dim, _ in point.observed))
    return point.dims


def regions_of(point: Point) -> tuple[Region, ...]:
    """The regions that are run at a point."""
    if isinstance(point, BindPoint):
        return ()
    return point.regions if isinstance(point, BranchPoint) else (point.region,)
