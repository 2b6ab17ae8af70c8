"""Which shapes to verify: every dimension 1, odd primes, and large, within the model's bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from graphc import testing
from graphc.artifact import DimInfo, FunctionInfo, PortInfo
from graphc.errors import InputError

_PRIMES: Final = (17, 13, 19, 23, 29, 31)
_BATCH_PRIMES: Final = (3, 5, 7)
LARGE: Final = 512
_BATCH_LARGE: Final = 2
# The large case is halved until its inputs and outputs have at most this many elements.
_MOST_INPUT: Final = 1 << 21
_MOST_OUTPUT: Final = 1 << 25
# A model may refuse short sequences or small images; then the lengths are doubled this often.
_DOUBLINGS: Final = 5


class Loaded(Protocol):
    """What choosing shapes needs of an artifact."""

    @property
    def inputs(self) -> Sequence[PortInfo]: ...
    @property
    def functions(self) -> Mapping[str, FunctionInfo]: ...
    def infer_shapes(
        self, shapes: Mapping[str, Sequence[int]], /
    ) -> Mapping[str, Sequence[int]]: ...


def shapes(loaded: Loaded, largest: int = LARGE) -> list[tuple[str, dict[str, int]]]:
    """Dimensions that are all 1, odd primes, and `largest`, within their bounds."""
    dims = loaded.functions["main"].dims
    batch = _batch_dims(loaded.inputs)
    one = {dim.name: dim.lower for dim in dims}
    odd, large = {}, {}
    primes = {True: iter(_BATCH_PRIMES * len(dims)), False: iter(_PRIMES * len(dims))}
    for dim in dims:
        is_batch = dim.name in batch
        odd[dim.name] = _clamped(next(primes[is_batch]), dim)
        large[dim.name] = _clamped(_BATCH_LARGE if is_batch else largest, dim)
    large = _affordable(large, loaded)
    chosen: list[tuple[str, dict[str, int]]] = []
    for label, sizes in (("one", one), ("odd", odd), ("large", large)):
        if sizes not in [known for _, known in chosen]:
            chosen.append((label, sizes))
    return chosen


def _batch_dims(ports: Sequence[PortInfo]) -> set[str]:
    """Symbols that lead an input of rank two or more."""
    leading = (port.shape[0] for port in ports if len(port.shape) >= 2)
    return {dim for dim in leading if isinstance(dim, str)}


def _clamped(value: int, dim: DimInfo) -> int:
    value = max(value, dim.lower)
    return value if dim.upper is None else min(value, dim.upper)


def _affordable(sizes: dict[str, int], loaded: Loaded) -> dict[str, int]:
    """Halve the largest dimension until the tensors that a caller sees are of bounded size."""
    lower = {dim.name: dim.lower for dim in loaded.functions["main"].dims}
    while True:
        shapes = {port.name: testing.concrete_shape(port, sizes) for port in loaded.inputs}
        read = sum(math.prod(shape) for shape in shapes.values())
        try:
            inferred = loaded.infer_shapes(shapes).values()
            written = sum(math.prod(max(extent, 0) for extent in shape) for shape in inferred)
        except InputError:  # these sizes break a constraint: running them will say which
            return sizes
        longest = max(sizes, key=lambda name: sizes[name] - lower[name], default="")
        if (read <= _MOST_INPUT and written <= _MOST_OUTPUT) or not longest:
            return sizes
        if sizes[longest] == lower[longest]:
            return sizes
        sizes = sizes | {longest: max(sizes[longest] // 2, lower[longest])}


def stretched(sizes: dict[str, int], loaded: Loaded) -> Iterator[dict[str, int]]:
    """The sizes, then the same with doubled lengths, as long as that changes them."""
    yield sizes
    batch = _batch_dims(loaded.inputs)
    for _ in range(_DOUBLINGS):
        longer = {
            dim.name: sizes[dim.name] if dim.name in batch else _clamped(2 * sizes[dim.name], dim)
            for dim in loaded.functions["main"].dims
        }
        if longer == sizes:
            return
        sizes = longer
        yield sizes
