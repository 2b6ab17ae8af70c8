"""What an exported function does when not all of it is one dataflow: calls of straight functions,
dimensions that become known in mid-run, branches and loops.

A program is beside the Relax module, not in it: each `Call` names a Relax function of the module
(a segment), which passes optimise like any other, and the planner puts the segments' kernels in the
program's order. Values are numbered; all symbolic dimensions of a program have different names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from graphc.ir import Constraint, Dim, Expr, Signature

DIMENSIONS = "dimensions"
"""Attribute of a segment: 1 when its last input only carries dimensions that no other one has."""


@dataclass(frozen=True)
class Value:
    """A tensor between steps; `name` is for messages."""

    name: str
    dtype: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True)
class Call:
    """Runs the segment `function`."""

    function: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Bind:
    """Gives dimensions the elements of an integer vector, in order; `where` names the node.

    An element outside the dimension's bounds is an error in the inputs.
    """

    value: int
    dims: tuple[Dim, ...]
    where: str
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class Block:
    """Steps that run together and what they give; `constraints` hold when the block is entered."""

    steps: tuple[Step, ...]
    results: tuple[int, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class Branch:
    """Runs one of two blocks.

    `extents` give each of `dims`, the dimensions that the blocks' results disagree in, for the
    first and for the second block.
    """

    condition: int
    blocks: tuple[Block, Block]
    outputs: tuple[int, ...]
    dims: tuple[Dim, ...]
    extents: tuple[tuple[Expr, ...], tuple[Expr, ...]]
    where: str
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True)
class Loop:
    """Repeats a block `limit` times, or until its condition is false.

    `step` is the dimension that counts iterations. `inner` are the carried values as the body sees
    them, over `inner_dims`, which are first `initial_extents` and after each iteration
    `next_extents`. The body's results are the condition (if there is a `condition` to start with),
    the next carried values and a slice for each stacked value. The dimensions `observed` have the
    same value in every iteration (0 when there is none). Afterwards `dims` become known, as
    `outer_extents` of the step and the inner dimensions; `outputs` are the last carried values.
    """

    limit: Expr
    condition: int | None
    step: Dim
    initial: tuple[int, ...]
    inner: tuple[int, ...]
    inner_dims: tuple[Dim, ...]
    initial_extents: tuple[Expr, ...]
    next_extents: tuple[Expr, ...]
    body: Block
    observed: tuple[tuple[Dim, Expr], ...]
    outputs: tuple[int, ...]
    stacked: tuple[int, ...]
    dims: tuple[Dim, ...]
    outer_extents: tuple[Expr, ...]
    where: str
    constraints: tuple[Constraint, ...] = ()


Step = Call | Bind | Branch | Loop


@dataclass(frozen=True)
class Program:
    """An exported function: `inputs` and the block's results are in the signature's order."""

    signature: Signature
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    body: Block

    def segments(self) -> list[str]:
        """The names of the Relax functions that it calls."""
        return [step.function for step in _calls(self.body)]


def _calls(block: Block) -> Iterator[Call]:
    for step in block.steps:
        if isinstance(step, Call):
            yield step
        elif isinstance(step, Branch):
            for part in step.blocks:
                yield from _calls(part)
        elif isinstance(step, Loop):
            yield from _calls(step.body)
