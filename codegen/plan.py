"""The static plan: what one exported function does, as data, in the order in which it does it.

Built from a lowered Relax function by `codegen/planner.py`, or from a program of several by
`codegen/program_planner.py`, and printed as C by `codegen/host.py`. There is no allocation in it:
tensors have shapes over the symbolic dimensions, and where each lies in the arena is computed at
run time when the dimensions are known. Dimensions become known in stages: those of the inputs'
shapes in stage 0, before the first step, and others in mid-run, by a `Measure` or an `Assign` and
the `Enter` of their stage, which places what has a shape over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from graphc.ir import Constraint, Dim, Expr, Signature


class Storage(Enum):
    """Where a tensor lies."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    ARENA = "arena"
    CACHE = "cache"
    SLOT = "slot"  # memory of its own, for what a loop carries from one iteration to the next


@dataclass(frozen=True)
class Tensor:
    """A typed view of a piece of storage.

    `index` is the number of the input, output, weight, arena buffer or slot that it views; several
    tensors (reshapes of one value) may view the same one. A cache is an input that kernels write.
    """

    storage: Storage
    index: int
    dtype: str
    shape: tuple[Expr, ...]
    name: str = ""


@dataclass(frozen=True)
class Buffer:
    """One piece of the arena of its stage, live from step `first` to step `last`, both included.

    Steps count as they are written, a branch's and a loop's own among them; what a loop reads from
    before it lives to the loop's end. Its size is the largest that any tensor viewing it needs.
    """

    first: int
    last: int
    stage: int = 0


@dataclass(frozen=True)
class Scalar:
    """An int64 argument of a kernel."""

    value: Expr


@dataclass(frozen=True)
class Kernel:
    """Calls the PrimFunc `name`; an argument is a tensor's number or a scalar, in call order.

    `writes` are the tensors among `args` that it writes; `template` says what scheduled it,
    `flops` how many additions and multiplications it takes, when the template tells.
    """

    name: str
    args: tuple[int | Scalar, ...]
    writes: tuple[int, ...]
    template: str = ""
    flops: Expr | None = None


@dataclass(frozen=True)
class CheckIndices:
    """Fails unless every element of an integer tensor is in [low, high]; `where` names the node."""

    tensor: int
    low: Expr
    high: Expr
    where: str


@dataclass(frozen=True)
class Copy:
    """Copies a tensor as it is: for outputs that are also inputs, weights or other outputs."""

    source: int
    target: int


@dataclass(frozen=True)
class Measure:
    """Gives dimensions the elements of an int64 vector, after a check of their bounds."""

    tensor: int
    dims: tuple[Dim, ...]
    where: str


@dataclass(frozen=True)
class Assign:
    """Gives dimensions the values of expressions, all computed before the first is given."""

    dims: tuple[Dim, ...]
    extents: tuple[Expr, ...]
    where: str


@dataclass(frozen=True)
class Observe:
    """In the first iteration of a loop as Assign, in others a check that the values are equal."""

    step: str
    dims: tuple[Dim, ...]
    extents: tuple[Expr, ...]
    where: str


@dataclass(frozen=True)
class Enter:
    """Computes the shapes of a stage, checks its constraints and gives its tensors memory."""

    stage: int


@dataclass(frozen=True)
class Branch:
    """Runs `then` when the boolean tensor is true, else `other`."""

    condition: int
    then: tuple[Step, ...]
    other: tuple[Step, ...]


@dataclass(frozen=True)
class Loop:
    """Repeats its body while `step` is below `limit` and no `Continue` in it said otherwise.

    `step` is a dimension that is the number of the iteration. With `condition`, a boolean tensor,
    the first iteration too is run only when that is true.
    """

    step: str
    limit: Expr
    condition: int | None
    body: tuple[Step, ...]


@dataclass(frozen=True)
class Continue:
    """Ends the innermost loop after this iteration, unless the boolean tensor is true."""

    condition: int


@dataclass(frozen=True)
class Clear:
    """Empties a slot."""

    slot: int


@dataclass(frozen=True)
class Store:
    """Copies a tensor into a slot, behind what is there (`append`) or instead of it."""

    source: int
    slot: int
    append: bool = False


@dataclass(frozen=True)
class Expose:
    """Gives the tensors of a slot its memory, those of the stage and earlier ones checked."""

    slot: int
    stage: int


Step = (
    Kernel
    | CheckIndices
    | Copy
    | Measure
    | Assign
    | Observe
    | Enter
    | Branch
    | Loop
    | Continue
    | Clear
    | Store
    | Expose
)


@dataclass(frozen=True)
class Stage:
    """Dimensions that become known together in mid-run, and what must hold then."""

    dims: tuple[Dim, ...]
    constraints: tuple[Constraint, ...] = ()


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps as they are written; a branch or loop comes before its own."""
    for step in steps:
        yield step
        if isinstance(step, Branch):
            yield from walk(step.then)
            yield from walk(step.other)
        elif isinstance(step, Loop):
            yield from walk(step.body)


@dataclass(frozen=True)
class FunctionPlan:
    """One exported function."""

    name: str
    signature: Signature
    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    weights: tuple[str, ...]  # names; Tensor.index of a WEIGHT counts in here
    stages: tuple[Stage, ...] = ()  # after stage 0, whose dimensions are the signature's
    slots: int = 0

    def kernels(self) -> dict[str, Kernel]:
        """The kernels that it calls, by name."""
        return {step.name: step for step in walk(self.steps) if isinstance(step, Kernel)}

    def stage_of_dims(self) -> dict[str, int]:
        """The stage of each dimension, by name."""
        known = {dim.name: 0 for dim in self.signature.dims}
        for number, stage in enumerate(self.stages, 1):
            known.update({dim.name: number for dim in stage.dims})
        return known
