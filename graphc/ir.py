"""What crosses the borders between stages: a Relax module, its weights and its signature.

Inside a stage everything is TVM's Relax. The Relax function takes the inputs first and then every
weight as a parameter (`attrs["num_input"]` inputs); the weights' values stay outside, in
`Model.params`, memory-mapped until a pass rewrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from tvm import ir, tirx

Expr: TypeAlias = "int | tirx.PrimExpr"
"""A dimension: a number or an expression over the symbolic dimensions of the inputs."""


@dataclass(frozen=True)
class Dim:
    """A symbolic dimension and the values that it may take, both ends included."""

    name: str
    lower: int = 1
    upper: int | None = None


@dataclass(frozen=True)
class Port:
    """One input or output of a function.

    `value_range` is [low, high] for integer inputs that index a table, as far as it is known.
    `narrow` names the type of 2 or 4 bits, or of 8-bit floats, that is held in `dtype`, one value
    to an element.
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    value_range: tuple[int, int] | None = None
    narrow: str = ""


@dataclass(frozen=True)
class Constraint:
    """`left == right` over dimensions, assumed by the importer and checked at run time.

    `reason` completes the sentence "this model needs left == right: ...", naming the node.
    """

    left: Expr
    right: Expr
    reason: str


@dataclass(frozen=True)
class Signature:
    """Inputs, outputs and what is known of the symbolic dimensions of one function."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dims: tuple[Dim, ...]
    constraints: tuple[Constraint, ...] = ()


class Weights(Mapping[str, np.ndarray]):
    """Weights by name, of which some are computed each time when they are read.

    A packed weight is as large as the plain one; made when it is written to the artifact, one at a
    time, it never doubles the memory that a compile takes.
    """

    def __init__(self, values: Mapping[str, np.ndarray | Callable[[], np.ndarray]]) -> None:
        inner = values._values if isinstance(values, Weights) else values
        self._values: dict[str, np.ndarray | Callable[[], np.ndarray]] = dict(inner)

    def __getitem__(self, name: str) -> np.ndarray:
        value = self._values[name]
        return value if isinstance(value, np.ndarray) else value()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def but(
        self,
        added: Mapping[str, np.ndarray | Callable[[], np.ndarray]],
        dropped: Collection[str] = (),
    ) -> Weights:
        """These weights with some added and some left out."""
        kept = {name: value for name, value in self._values.items() if name not in dropped}
        return Weights({**kept, **added})

    def only(self, names: Iterable[str]) -> Weights:
        """The weights of these names, in their order."""
        return Weights({name: self._values[name] for name in names})


@dataclass(frozen=True)
class CacheInfo:
    """One cache of a language model: every token leaves [heads, width] values in its pages."""

    name: str
    heads: int
    width: int
    dtype: str = "float32"


@dataclass(frozen=True)
class DecoderInfo:
    """What the exported function `function` of a causal language model needs to be stepped.

    `max_context` is the longest sequence that its positions allow. `ragged`: one call takes chunks
    of several sequences; otherwise one sequence at a time, on gathered pages.
    """

    caches: tuple[CacheInfo, ...]
    vocabulary: int
    max_context: int
    page_size: int = 16
    ragged: bool = True
    function: str = "step"


@dataclass(frozen=True)
class Model:
    """A transformer on its way through the passes.

    `params[name]` is the value of the weight whose Relax variable has that name hint.
    `signatures` has one entry for each Relax function that the artifact will export. `decoder` is
    set when that is the step of a causal language model over paged caches.
    """

    mod: ir.IRModule
    params: Mapping[str, np.ndarray]
    signatures: Mapping[str, Signature]
    source: str = ""
    statistics: Mapping[str, int] = field(default_factory=dict)
    decoder: DecoderInfo | None = None
