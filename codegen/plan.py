"""The static plan: what one exported function does, as data, in the order in which it does it.

Built from a lowered Relax function by `codegen/planner.py`, printed as C by `codegen/host.py`.
There is no control flow and no allocation in it: tensors have shapes over the symbolic dimensions,
and where each lies in the arena is computed at run time when the dimensions are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from graphc.ir import Expr, Signature


class Storage(Enum):
    """Where a tensor lies."""

    INPUT = "input"
    OUTPUT = "output"
    WEIGHT = "weight"
    ARENA = "arena"
    CACHE = "cache"


@dataclass(frozen=True)
class Tensor:
    """A typed view of a piece of storage.

    `index` is the number of the input, output, weight or arena buffer that it views; several
    tensors (reshapes of one value) may view the same one. A cache is an input that kernels write.
    """

    storage: Storage
    index: int
    dtype: str
    shape: tuple[Expr, ...]
    name: str = ""


@dataclass(frozen=True)
class Buffer:
    """One piece of the arena, live from step `first` to step `last`, both included.

    Its size is the largest that any tensor viewing it needs.
    """

    first: int
    last: int


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


Step = Kernel | CheckIndices | Copy


@dataclass(frozen=True)
class FunctionPlan:
    """One exported function."""

    name: str
    signature: Signature
    tensors: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    weights: tuple[str, ...]  # names; Tensor.index of a WEIGHT counts in here
