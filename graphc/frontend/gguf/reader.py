"""Reads a GGUF file (versions 2 and 3): metadata, and tensors as views of the mapped file.

The file is untrusted: every length and offset is checked before it is used, and what does not fit
is a ModelError that says where.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphc.errors import ModelError

_MAGIC: Final = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
# struct's letter for each number type of the metadata.
_NUMBERS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_MOST_NESTED = 4
_MOST_DIMS = 4
_LARGEST_EXTENT = 1 << 40


@dataclass(frozen=True)
class Tensor:
    """One tensor: `shape` is numpy's (rows first), `kind` ggml's number of the element format.

    `offset` counts from the beginning of the file; how many bytes follow is the format's business.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class GgufFile:
    """`data` is the whole file, memory-mapped."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    data: np.ndarray

    def raw(self, tensor: Tensor, size: int) -> np.ndarray:
        """The bytes of a tensor."""
        if tensor.offset + size > self.data.size:
            raise ModelError(
                f"{self.path}: tensor {tensor.name} takes {size} bytes from {tensor.offset} on, "
                f"the file has {self.data.size}: it is cut off, fetch it again"
            )
        return self.data[tensor.offset : tensor.offset + size]

    def value(self, key: str, kind: type, default: Any = None) -> Any:
        """A metadata value of this type, or the default if there is none."""
        found = self.metadata.get(key)
        if found is None:
            return default
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise ModelError(f"{self.path}: {key} is {found!r:.60}, expected {kind.__name__}")
        return found


def read(path: Path) -> GgufFile:
    """The file's metadata and the places of its tensors."""
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    cursor = _Cursor(path, data)
    if cursor.bytes(4, "its magic") != _MAGIC:
        raise ModelError(f"{path}: it does not begin with GGUF: no model file of that kind")
    version = cursor.number("I", "its version")
    if version not in (2, 3):
        raise ModelError(f"{path}: version {version} of GGUF, graphc reads 2 and 3")
    tensors, pairs = cursor.number("Q", "the tensor count"), cursor.number("Q", "the pair count")
    cursor.expect(tensors, 24, "tensors")
    cursor.expect(pairs, 13, "metadata pairs")
    metadata = {}
    for _ in range(pairs):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ModelError(f"{path}: metadata key {key} occurs twice")
        metadata[key] = cursor.value(cursor.number("I", key), key, 0)
    found = [_tensor(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise ModelError(f"{path}: general.alignment is {alignment!r}, expected a small number")
    start = -(-cursor.at // alignment) * alignment
    return GgufFile(path, version, metadata, _placed(path, found, start), data)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.string("a tensor's name")
    rank = cursor.number("I", f"tensor {name}")
    if not 1 <= rank <= _MOST_DIMS:
        raise ModelError(f"{cursor.path}: tensor {name} has {rank} dimensions, at most 4 are known")
    shape = tuple(cursor.number("Q", f"tensor {name}") for _ in range(rank))
    if not all(1 <= extent <= _LARGEST_EXTENT for extent in shape):
        raise ModelError(f"{cursor.path}: tensor {name} has the shape {list(shape)}")
    if math.prod(shape) > _LARGEST_EXTENT:
        raise ModelError(f"{cursor.path}: tensor {name} of shape {list(shape)} is too large")
    kind, offset = cursor.number("I", f"tensor {name}"), cursor.number("Q", f"tensor {name}")
    return Tensor(name, shape[::-1], kind, offset)


def _placed(path: Path, tensors: list[Tensor], start: int) -> dict[str, Tensor]:
    placed: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in placed:
            raise ModelError(f"{path}: tensor {tensor.name} occurs twice")
        place = start + tensor.offset
        placed[tensor.name] = Tensor(tensor.name, tensor.shape, tensor.kind, place)
    return placed


class _Cursor:
    """A place in the file that only moves forward, within it."""

    def __init__(self, path: Path, data: np.ndarray) -> None:
        self.path, self.data, self.at = path, data, 0

    def bytes(self, count: int, what: str) -> bytes:
        self.expect(count, 1, what)
        begin, self.at = self.at, self.at + count
        return self.data[begin : self.at].tobytes()

    def expect(self, count: int, size: int, what: str) -> None:
        """At least so many things of at least this size must still follow."""
        if count * size > self.data.size - self.at:
            raise ModelError(
                f"{self.path}: it ends at byte {self.data.size}, before {what} "
                f"({count} from byte {self.at} on): it is cut off or damaged"
            )

    def number(self, letter: str, what: str) -> Any:
        (value,) = struct.unpack(f"<{letter}", self.bytes(struct.calcsize(f"<{letter}"), what))
        return value

    def string(self, what: str) -> str:
        raw = self.bytes(self.number("Q", what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw.decode("utf-8", "surrogateescape")

    def value(self, kind: int, what: str, nested: int) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what, nested)
        if kind not in _NUMBERS:
            raise ModelError(f"{self.path}: {what} has the unknown type {kind}")
        value = self.number(_NUMBERS[kind], what)
        return bool(value) if kind == _BOOL else value

    def _array(self, what: str, nested: int) -> list[Any]:
        if nested == _MOST_NESTED:
            raise ModelError(f"{self.path}: {what} is an array of arrays, too deep")
        kind, count = self.number("I", what), self.number("Q", what)
        if kind in _NUMBERS:
            letter = _NUMBERS[kind]
            size = struct.calcsize(f"<{letter}")
            self.expect(count, size, what)
            array = np.frombuffer(self.bytes(count * size, what), f"<{np.dtype(letter).str[1:]}")
            return [bool(x) for x in array] if kind == _BOOL else list(array.tolist())
        self.expect(count, 8, what)
        return [self.value(kind, what, nested + 1) for _ in range(count)]
