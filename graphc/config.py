"""What a user asks of one compile, checked, frozen, and the same from Python and the shell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from graphc.errors import ConfigError

Bound: TypeAlias = "int | tuple[int, int | None]"
"""A dimension's one value, or the lowest and highest it may take (None: no limit)."""

_BOUND: Final = re.compile(r"(\d+)(?:(\.\.)(\d*))?", re.ASCII)
_LARGEST: Final = (1 << 31) - 1
CALIBRATION_METHODS: Final = ("minmax", "percentile", "entropy")
_RESERVED: Final = ("tuning_log",)
_ACTIVATIONS: Final = ("auto", "int8", "float")
_DECODER: Final = ("auto", "off")
CACHE_DTYPES: Final = MappingProxyType(
    {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "int8": "int8"}
)
"""What the cache of a language model may be kept as; int8 has a scale per token and head."""


@dataclass(frozen=True)
class CompileConfig:
    """Options of `graphc.compile`.

    dims: what symbolic dimensions of the inputs may be; those not named stay free.
    verify: compare with ONNX Runtime at the end. threads: overrides the target's.
    tolerance: largest |difference| / scale allowed instead of the table's (graphc.testing).
    quantize: a scheme's name (graphc.passes.quantize). calibration: a .npz file, or a folder of
    them, each with one array for every input: what static schemes learn their ranges from.
    calibration_method: minmax, percentile or entropy. smooth: SmoothQuant's exponent, 0 for none.
    max_error: what `quantize="auto"` may lose, as 1 - cosine of the outputs.
    activations: what products with weights of few bits take: "auto" is what the model's own format
    wants (int8 for GGUF), "float" keeps them exact, "int8" is the fastest.
    decoder: "auto" gives a causal language model a paged cache, "off" keeps it as it is.
    cache_dtype: f32, bf16, f16 or int8, what the cache's pages hold.
    max_context: the longest sequence of a language model; what its positions allow by default.
    tuning_log: a name kept for later versions; giving one is an error.
    """

    target: str = "host"
    output: Path | None = None
    dims: Mapping[str, Bound] = field(default_factory=dict, hash=False)
    verify: bool = True
    threads: int | None = None
    tolerance: float | None = None
    quantize: str | None = None
    calibration: Path | None = None
    calibration_method: str = "minmax"
    smooth: float = 0.0
    max_error: float = 0.01
    tuning_log: Path | None = None
    max_context: int | None = None
    activations: str = "auto"
    decoder: str = "auto"
    cache_dtype: str = "f32"

    def __post_init__(self) -> None:
        for name in _RESERVED:
            value = getattr(self, name)
            if value is not None:
                raise ConfigError(
                    f"{name} = {value}: not available in this version of graphc, leave it out"
                )
        if not isinstance(self.target, str):
            raise ConfigError(f"target = {self.target!r}: expected the name of a target")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads = {self.threads}: expected 1 to 1024")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ConfigError(f"tolerance = {self.tolerance}: expected a number between 0 and 1")
        if self.calibration_method not in CALIBRATION_METHODS:
            known = ", ".join(CALIBRATION_METHODS)
            raise ConfigError(f"calibration_method = {self.calibration_method!r}: not in {known}")
        if not 0 <= self.smooth <= 1:
            raise ConfigError(f"smooth = {self.smooth}: expected a number from 0 to 1")
        if not 0 < self.max_error < 1:
            raise ConfigError(f"max_error = {self.max_error}: expected a number between 0 and 1")
        if self.calibration is not None:
            object.__setattr__(self, "calibration", Path(self.calibration))
            if not self.calibration.exists():
                raise ConfigError(f"calibration = {self.calibration}: no such file or folder")
        if self.activations not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ConfigError(f"activations = {self.activations!r}: expected one of {known}")
        if self.decoder not in _DECODER:
            raise ConfigError(f"decoder = {self.decoder!r}: expected {' or '.join(_DECODER)}")
        if self.cache_dtype not in CACHE_DTYPES:
            raise ConfigError(
                f"cache_dtype = {self.cache_dtype!r}: expected one of {', '.join(CACHE_DTYPES)}"
            )
        if self.max_context is not None and not 1 <= self.max_context <= _LARGEST:
            raise ConfigError(f"max_context = {self.max_context}: expected 1 to {_LARGEST}")
        if self.output is not None:
            object.__setattr__(self, "output", Path(self.output))
        checked = {name: _checked(name, bound) for name, bound in sorted(self.dims.items())}
        object.__setattr__(self, "dims", MappingProxyType(checked))

    def record(self) -> dict[str, object]:
        """What of this decides the artifact's bytes, as plain data."""
        return {
            "dims": {k: v if isinstance(v, int) else list(v) for k, v in self.dims.items()},
            "verify": self.verify,
            "threads": self.threads,
            "tolerance": self.tolerance,
            "quantize": self.quantize,
            "calibration_method": self.calibration_method,
            "smooth": self.smooth,
            "max_error": self.max_error,
            "max_context": self.max_context,
            "activations": self.activations,
            "decoder": self.decoder,
            "cache_dtype": self.cache_dtype,
        }


def _checked(name: str, bound: object) -> Bound:
    if isinstance(bound, int) and not isinstance(bound, bool):
        lower, upper = bound, bound
    elif isinstance(bound, tuple) and len(bound) == 2:
        lower, upper = bound
        upper = _LARGEST if upper is None else upper
    else:
        raise ConfigError(f"dim {name} = {bound!r}: expected a number or a pair (low, high)")
    if not (isinstance(lower, int) and isinstance(upper, int) and 1 <= lower <= upper <= _LARGEST):
        raise ConfigError(
            f"dim {name} = {bound!r}: expected 1 <= low <= high <= {_LARGEST}; "
            "a dimension of length 0 has nothing to compute"
        )
    return bound if isinstance(bound, int) else (lower, bound[1])


def _split(text: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise ConfigError(f"{text!r} cannot be used: expected NAME=VALUE such as {example}")
    return name, value


def parse_bounds(texts: Sequence[str]) -> dict[str, Bound]:
    """`sequence=128`, `sequence=1..512` or `batch=1..` to bounds."""
    bounds: dict[str, Bound] = {}
    for text in texts:
        name, value = _split(text, "sequence=1..512")
        match = _BOUND.fullmatch(value)
        if match is None:
            raise ConfigError(f"dim {text!r} cannot be used: expected 128, 1..512 or 1..")
        if name in bounds:
            raise ConfigError(f"dim {name} is given twice")
        low, dots, high = match.groups()
        bounds[name] = (int(low), int(high) if high else None) if dots else int(low)
        _checked(name, bounds[name])
    return bounds


def parse_dims(texts: Sequence[str]) -> dict[str, int]:
    """`batch=3` to numbers, for verbs that need one value for each dimension."""
    dims: dict[str, int] = {}
    for name, bound in parse_bounds(texts).items():
        if not isinstance(bound, int):
            raise ConfigError(f"dim {name}: a range cannot be used here, give one number")
        dims[name] = bound
    return dims


def parse_inputs(texts: Sequence[str]) -> dict[str, Path]:
    """`input_ids=ids.npy` to files, each of which must exist."""
    files: dict[str, Path] = {}
    for text in texts:
        name, value = _split(text, "input_ids=ids.npy")
        if name in files:
            raise ConfigError(f"input {name} is given twice")
        if not Path(value).is_file():
            raise ConfigError(f"input {name}: no such file {value}")
        files[name] = Path(value)
    return files
