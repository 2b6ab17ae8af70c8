"""Random inputs for a signature, and how far two arrays may differ: the one tolerance table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from graphc.errors import ConfigError, InputError

Array: TypeAlias = "npt.NDArray[np.generic]"

# What |actual - expected| may be, over max(1, rms(expected), |expected|): absolute for values of
# the size of activations, relative for larger ones. 0 means equal.
TOLERANCES: Final[Mapping[str, float]] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 1e-2,
    "bfloat16": 4e-2,
}


QUANTISED_TOLERANCE: Final = 0.5
"""What the norm of a float output's error may be, over the output's, where the artifact rounds to
few bits and no nudge tells what that moves: the reference keeps the floats, or a language model is
stepped. It finds a wrong operator, which gives about 1, and nothing finer; see graphc.nudge.
"""


STEPS_TOLERANCE: Final = 0.05
"""The same for one quantised computation done in two ways, by kernels and by their definitions:
only activations that fall on the other side of a half move, by one step each."""


class PortLike(Protocol):
    """An input as graphc.ir and graphc.module describe it; symbolic dimensions print as names."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[object, ...]: ...
    @property
    def value_range(self) -> tuple[int, int] | None: ...


@dataclass(frozen=True)
class Difference:
    """How far one output is from its reference.

    max_abs: largest |actual - expected|. max_rel: that over the largest |expected|.
    worst: largest |actual - expected| in units of the tolerance table's scale. cosine: of the two.
    norm: the error's norm over that of `expected`.
    """

    max_abs: float
    max_rel: float
    cosine: float
    worst: float
    norm: float = 0.0


def tolerance(dtype: str, override: float | None = None) -> float:
    """What `Difference.worst` may be; integers and booleans must be equal."""
    return TOLERANCES[dtype] if override is None and dtype in TOLERANCES else (override or 0.0)


def compare(actual: Array, expected: Array) -> Difference:
    """Measure how far `actual` is from `expected`; NaN and infinities must be in equal places."""
    if actual.shape != expected.shape:
        return Difference(math.inf, math.inf, 0.0, math.inf, math.inf)
    a, e = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    same = (a == e) | (np.isnan(a) & np.isnan(e))
    if bool(np.any(~same & ~(np.isfinite(a) & np.isfinite(e)))):
        return Difference(math.inf, math.inf, 0.0, math.inf, math.inf)
    finite = np.isfinite(e)
    a, e = a[finite], e[finite]
    if not e.size:
        return Difference(0.0, 0.0, 1.0, 0.0)
    distance, size = np.abs(a - e), np.abs(e)
    floor = max(1.0, float(np.sqrt(np.mean(e * e))))
    norms = float(np.linalg.norm(a) * np.linalg.norm(e))
    max_abs = float(distance.max())
    length = float(np.linalg.norm(e))
    return Difference(
        max_abs=max_abs,
        max_rel=max_abs / float(size.max()) if size.max() > 0 else float(max_abs > 0),
        cosine=float(np.clip(np.dot(a, e) / norms, -1, 1)) if norms > 0 else float(max_abs == 0),
        worst=float((distance / np.maximum(size, floor)).max()),
        norm=float(np.linalg.norm(a - e)) / length if length > 0 else float(max_abs > 0),
    )


def concrete_shape(port: PortLike, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The port's shape with numbers for its dimensions; one without a number is a ConfigError."""
    shape = []
    for dim in port.shape:
        if isinstance(dim, int):
            shape.append(dim)
        elif str(dim) in dims:
            shape.append(dims[str(dim)])
        else:
            raise ConfigError(f"input {port.name}: give a value with --dim {dim}=N")
    return tuple(shape)


def dims_of(ports: Iterable[PortLike], arrays: Mapping[str, Array]) -> dict[str, int]:
    """What the arrays given for some of the ports say about the symbolic dimensions."""
    dims: dict[str, int] = {}
    for port in ports:
        if port.name not in arrays:
            continue
        given = arrays[port.name].shape
        if len(given) != len(port.shape):
            raise InputError(
                f"input {port.name}: rank {len(given)} given, rank {len(port.shape)} expected"
            )
        for dim, length in zip(port.shape, given, strict=True):
            if not isinstance(dim, int) and dims.setdefault(str(dim), length) != length:
                raise InputError(
                    f"input {port.name}: {dim} = {length} here, but another input has {dim} = "
                    f"{dims[str(dim)]}"
                )
    return dims


def random_input(port: PortLike, dims: Mapping[str, int], seed: int = 0) -> Array:
    """An array for the port, the same on every machine.

    Floats are normal. Integers lie in the port's value_range; without one they are a mask along
    the last axis: ones, then zeros from a place that differs by row.
    """
    shape = concrete_shape(port, dims)
    rng = np.random.Generator(np.random.PCG64([seed, *port.name.encode()]))
    if port.dtype in TOLERANCES:
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype(port.dtype))
    if port.value_range is not None:
        low, high = port.value_range
        return rng.integers(low, high, shape, np.int64, endpoint=True).astype(dtype(port.dtype))
    if not shape:
        return np.ones(shape, dtype(port.dtype))
    lengths = rng.integers(1, shape[-1], (*shape[:-1], 1), endpoint=True)
    if lengths.size > 1:
        lengths.flat[0] = shape[-1]
    return (np.arange(shape[-1]) < lengths).astype(dtype(port.dtype))


def random_inputs(
    ports: Iterable[PortLike], dims: Mapping[str, int], seed: int = 0
) -> dict[str, Array]:
    """One array for each port."""
    return {port.name: random_input(port, dims, seed) for port in ports}


def feeds(
    ports: Sequence[PortLike],
    dims: Mapping[str, int],
    inputs: Mapping[str, Array],
    *,
    draw: bool = True,
) -> dict[str, Array]:
    """The inputs for one run: those given, and the others drawn at random if `draw` is true."""
    known = [str(dim) for port in ports for dim in port.shape if not isinstance(dim, int)]
    for name in dims:
        if name not in known:
            listed = ", ".join(dict.fromkeys(known)) or "all are fixed"
            raise ConfigError(
                f"dim {name}: the inputs have no such dimension (there are: {listed})"
            )
    for name in inputs:
        if name not in {port.name for port in ports}:
            listed = ", ".join(port.name for port in ports)
            raise InputError(f"input {name}: the model has no such input (it has: {listed})")
    sizes = dims_of(ports, inputs)
    for name, value in dims.items():
        if sizes.setdefault(name, value) != value:
            raise ConfigError(f"dim {name} = {value}: the inputs given have {name} = {sizes[name]}")
    missing = [port for port in ports if port.name not in inputs]
    if missing and not draw:
        raise InputError(
            f"input {missing[0].name} is not given: add --input {missing[0].name}=FILE, "
            "or --random for made-up values"
        )
    return {**inputs, **random_inputs(missing, sizes)}


def dtype(name: str) -> np.dtype[np.generic]:
    """NumPy's dtype of that name; bfloat16 comes from ml_dtypes, which only then is imported."""
    if name == "bfloat16":
        import ml_dtypes

        name = ml_dtypes.bfloat16
    kind: np.dtype[np.generic] = np.dtype(name)
    return kind
