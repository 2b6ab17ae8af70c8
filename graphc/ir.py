"""What crosses the borders between stages: a Relax module, its weights and its signature.

Inside a stage everything is TVM's Relax. The Relax function takes the inputs first and then every
weight as a parameter (`attrs["num_input"]` inputs); the weights' values stay outside, in
`Model.params`, memory-mapped until a pass rewrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from tvm import ir, tirx

if TYPE_CHECKING:
    from graphc.flow import Program

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
    """Inputs, outputs and what is known of the symbolic dimensions of one function.

    `choice` names a boolean input of the exported model that is fixed in this function.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dims: tuple[Dim, ...]
    constraints: tuple[Constraint, ...] = ()
    choice: tuple[str, bool] | None = None


Source: TypeAlias = "np.ndarray | Callable[[], np.ndarray]"
"""An array, or what makes it each time that it is read."""


def _read(source: Source) -> np.ndarray:
    return source if isinstance(source, np.ndarray) else source()


class Weights(Mapping[str, np.ndarray]):
    """Weights by name, of which some are computed each time when they are read.

    A packed weight is as large as the plain one; made when it is written to the artifact, one at a
    time, it never doubles the memory that a compile takes.
    """

    def __init__(self, values: Mapping[str, Source]) -> None:
        inner = values._values if isinstance(values, Weights) else values
        self._values: dict[str, Source] = dict(inner)

    def __getitem__(self, name: str) -> np.ndarray:
        return _read(self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, name: str, value: Source) -> None:
        """One weight more, under a new name."""
        assert name not in self._values, name
        self._values[name] = value

    def but(
        self,
        added: Mapping[str, Source],
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
class QuantizedWeight:
    """A weight of few bits: w[k, n] = codes[k, n] * scales[k // group, n] + minima[k // group, n].

    `codes` [K, N] (K summed over in a product, N its width) are one to a byte, each of `bits`
    bits: int8 without `minima`, uint8 with them. `scales` and `minima` are float32 [K / group, N].
    The computation is in float32 as it is written. `transposed` says that the plain weight is
    [N, K], as linear layers and embeddings keep it. `activation` is how its products take the other
    operand: "int8", quantised while running where the target is quick at that, or "float".
    """

    codes: Source
    scales: Source
    minima: Source | None
    group: int
    bits: int
    transposed: bool = False
    activation: str = "int8"

    def __post_init__(self) -> None:
        assert 1 <= self.bits <= 8 and self.group >= 1, self
        assert self.activation in ("int8", "float"), self.activation

    @property
    def code_type(self) -> str:
        """The element type of the codes."""
        return "int8" if self.minima is None else "uint8"

    def read_codes(self) -> np.ndarray:
        """codes [K, N]"""
        return _read(self.codes)

    def read_scales(self) -> np.ndarray:
        """scales [K / group, N]"""
        return _read(self.scales)

    def read_minima(self) -> np.ndarray | None:
        """minima [K / group, N], None when the weight is symmetric."""
        return None if self.minima is None else _read(self.minima)

    def plain(self) -> np.ndarray:
        """The float32 weight: [K, N], or [N, K] if `transposed`."""
        codes, scales, minima = self.read_codes(), self.read_scales(), self.read_minima()
        depth, width = codes.shape
        assert depth % self.group == 0 and scales.shape == (depth // self.group, width), (
            f"codes {codes.shape} in groups of {self.group} with scales {scales.shape}"
        )
        if self.transposed:
            groups = codes.T.reshape(width, -1, self.group)
            value: np.ndarray = groups * scales.T[:, :, None]
            if minima is not None:
                value += minima.T[:, :, None]
            return value.reshape(width, depth)
        value = codes.reshape(-1, self.group, width) * scales[:, None, :]
        if minima is not None:
            value += minima[:, None, :]
        return value.reshape(depth, width)

    def flipped(self) -> QuantizedWeight:
        """The same for the transposed plain weight."""
        return replace(self, transposed=not self.transposed)


@dataclass(frozen=True)
class Model:
    """A transformer on its way through the passes.

    `params[name]` is the value of the weight whose Relax variable has that name hint.
    `signatures` has one entry for each Relax function that passes work on. They are what the
    artifact exports, but for those that `programs` call: these are exported instead. `decoder` is
    set when that is the step of a causal language model over paged caches.
    `quantized[name]` is how a weight is made of few bits; `params[name]` is its plain value.
    """

    mod: ir.IRModule
    params: Mapping[str, np.ndarray]
    signatures: Mapping[str, Signature]
    source: str = ""
    statistics: Mapping[str, int] = field(default_factory=dict)
    decoder: DecoderInfo | None = None
    quantized: Mapping[str, QuantizedWeight] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)

    @property
    def exported(self) -> dict[str, Signature]:
        """The signature of each function that the artifact exports."""
        called = {name for program in self.programs.values() for name in program.segments()}
        plain = {name: made for name, made in self.signatures.items() if name not in called}
        return {name: program.signature for name, program in self.programs.items()} | plain
