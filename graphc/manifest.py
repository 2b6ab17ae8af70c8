"""manifest.json: what an artifact says of itself, strictly validated when it is read."""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Final

from graphc.errors import ArtifactError
from graphc.weights_file import DTYPE_BITS, WeightTable

FORMAT_VERSION: Final = 1
_INT64: Final = 1 << 63
_MAX_RANK: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ArtifactError(message)


@dataclass(frozen=True)
class PortInfo:
    """An input or output; a dimension is a number, a symbol's name or an expression's text."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    value_range: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPE_BITS, f"port {self.name!r}: unknown dtype {self.dtype!r}")
        _require(len(self.shape) <= _MAX_RANK, f"port {self.name!r}: rank {len(self.shape)}")
        for dim in self.shape:
            fits = 0 <= dim < _INT64 if isinstance(dim, int) else dim != ""
            _require(fits, f"port {self.name!r}: dimension {dim!r}")
        if self.value_range is not None:
            low, high = self.value_range
            _require(-_INT64 <= low <= high < _INT64, f"port {self.name!r}: range {low}..{high}")


@dataclass(frozen=True)
class DimInfo:
    """A symbolic dimension and its bounds, both included; None is no upper bound."""

    name: str
    lower: int = 1
    upper: int | None = None

    def __post_init__(self) -> None:
        upper = _INT64 - 1 if self.upper is None else self.upper
        _require(
            self.name != "" and 0 <= self.lower <= upper < _INT64,
            f"dimension {self.name!r}: bounds {self.lower}..{self.upper}",
        )


@dataclass(frozen=True)
class FunctionInfo:
    """An exported function; `constraints` are sentences on what its dimensions must satisfy.

    `work` is the number of multiplications and additions as a formula, see graphc/work.py.
    `choice` is a boolean input of the exported model, and what it is fixed to in this function.
    """

    name: str
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    dims: tuple[DimInfo, ...] = ()
    constraints: tuple[str, ...] = ()
    work: Mapping[str, Any] | None = None
    choice: tuple[str, bool] | None = None

    def __post_init__(self) -> None:
        for kind, items in (("input", self.inputs), ("output", self.outputs), ("dim", self.dims)):
            names = [item.name for item in items]
            _require(
                len(set(names)) == len(names), f"function {self.name!r}: a {kind} is listed twice"
            )


@dataclass(frozen=True)
class KernelInfo:
    """A kernel, the template that scheduled it and the tuning record used, if any."""

    name: str
    template: str = ""
    record: str | None = None


@dataclass(frozen=True)
class CacheRecord:
    """One cache of a language model: `heads` x `width` values of every token, kept as `dtype`."""

    name: str
    heads: int
    width: int
    dtype: str


@dataclass(frozen=True)
class LanguageInfo:
    """A causal language model: what steps it, and what it keeps of every token."""

    function: str
    page_size: int
    caches: tuple[CacheRecord, ...]
    vocabulary: int
    max_context: int
    ragged: bool = True
    cache_dtype: str = "f32"

    def __post_init__(self) -> None:
        numbers = (self.page_size, self.vocabulary, self.max_context)
        _require(all(0 < n < _INT64 for n in numbers), f"language model of sizes {numbers}")
        for cache in self.caches:
            _require(cache.heads > 0 and cache.width > 0, f"cache {cache.name!r} is empty")


@dataclass(frozen=True)
class TargetInfo:
    """What the kernels need: the machine (as `uname -m` says it) and CPU features (LLVM names)."""

    name: str
    machine: str
    triple: str = ""
    cpu_features: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileInfo:
    """A file of the artifact other than the weights and the manifest."""

    name: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        _require(_NAME.fullmatch(self.name) is not None, f"file name {self.name!r}")
        _require(0 <= self.size < _INT64, f"file {self.name}: size {self.size}")
        _require(_SHA256.fullmatch(self.sha256) is not None, f"file {self.name}: bad sha256")


@dataclass(frozen=True)
class Manifest:
    """All of it. `numerics` and `quality` are reports, plain JSON objects."""

    target: TargetInfo
    functions: tuple[FunctionInfo, ...]
    weights: WeightTable
    kernels: tuple[KernelInfo, ...] = ()
    graphc_version: str = ""
    tvm_version: str = ""
    source: str = ""
    numerics: Mapping[str, Any] | None = None
    quality: Mapping[str, Any] | None = None
    llm: LanguageInfo | None = None
    files: tuple[FileInfo, ...] = field(default=())
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        names = [function.name for function in self.functions]
        _require(bool(names), "no functions")
        _require(len(set(names)) == len(names), "a function is listed twice")


def to_json(manifest: Manifest) -> bytes:
    """The file's bytes: the same manifest gives the same bytes."""
    record = {"format_version": manifest.format_version, **_plain(asdict(manifest))}
    record["digest"] = _digest(record)
    return (json.dumps(record, indent=1, allow_nan=False) + "\n").encode()


def from_json(data: bytes, place: str) -> Manifest:
    """Decode and validate; ArtifactError names `place` and what is wrong."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{place}: not JSON, the artifact is damaged: {error}") from error
    if not isinstance(record, dict):
        raise ArtifactError(f"{place}: not a JSON object")
    version = record.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise ArtifactError(
            f"{place}: artifact format version {str(version)[:40]}, this graphc reads version "
            f"{FORMAT_VERSION}; compile the model again or use the graphc that made it"
        )
    digest = record.pop("digest", None)
    try:
        manifest = _decode(Manifest, record, "manifest")
        intact = digest == _digest(record)
    except ArtifactError as error:
        raise ArtifactError(f"{place}: damaged or made by a newer graphc: {error}") from error
    except (ValueError, RecursionError) as error:  # unprintable numbers, very deep reports
        raise ArtifactError(f"{place}: damaged: {error}") from error
    if not intact:
        raise ArtifactError(f"{place}: its contents do not match its digest; copy it again")
    assert isinstance(manifest, Manifest)
    return manifest


def _digest(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """As JSON has it; a number that JSON cannot hold becomes its name."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _decode(kind: Any, value: Any, where: str) -> Any:
    """`value` from JSON as the annotated type `kind`, which is one of those used above."""
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        _require(isinstance(value, list), f"{where} is not a list")
        if arguments[-1] is not Ellipsis:
            _require(len(value) == len(arguments), f"{where} has {len(value)} elements")
            pairs = zip(arguments, value, strict=True)
        else:
            pairs = zip([arguments[0]] * len(value), value, strict=True)
        return tuple(_decode(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(pairs))
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        allowed = [argument for argument in arguments if argument is not type(None)]
        if len(allowed) == 1:
            return _decode(allowed[0], value, where)
        _require(type(value) in allowed, f"{where} is {value!r:.40}")
        return value
    if origin is not None:  # Mapping[str, Any]: a report, read with care by who shows it
        _require(isinstance(value, dict), f"{where} is not an object")
        return value
    _require(type(value) is kind, f"{where} is {value!r:.40}, not of type {kind.__name__}")
    return value


def _decode_dataclass(kind: type[Any], value: Any, where: str) -> Any:
    _require(isinstance(value, dict), f"{where} is not an object")
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}
    unknown = sorted(set(value) - set(known))
    _require(not unknown, f"{where} has the unknown field {unknown[:1]}")
    given = {name: _decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
    try:
        return kind(**given)
    except TypeError as error:
        raise ArtifactError(f"{where} lacks a field: {error}") from error
