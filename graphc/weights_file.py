"""weights.bin: a 4096-byte header, then tensors aligned to 64 bytes, for memory-mapping.

    magic[8] version:u32 count:u32 bytes:u64 digest[32] zeros      (little-endian)

`digest` is the SHA-256 of the table; the table itself is in the manifest and in the library.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphc.errors import ArtifactError

_HEADER: Final = struct.Struct("<8sIIQ32s")
_MAGIC: Final = b"GRAPHCW\n"
_VERSION: Final = 1
_HEADER_BYTES: Final = 4096
_ALIGNMENT: Final = 64
_CHUNK: Final = 1 << 22
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

DTYPE_BITS: Final[Mapping[str, int]] = {
    "bool": 8,
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": 16,
    "float32": 32,
    "float64": 64,
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
}
"""Every dtype that a tensor of an artifact may have."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ArtifactError(message)


@dataclass(frozen=True)
class WeightEntry:
    """One tensor: `offset` from the start of the file and `nbytes` in bytes.

    `sha256` is of its contents; `checksum` is the quick one that the C runtime computes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    sha256: str
    checksum: int

    def __post_init__(self) -> None:
        place = f"weight {self.name!r}"
        _require(self.dtype in DTYPE_BITS, f"{place}: unknown dtype {self.dtype!r}")
        _require(len(self.shape) <= 32, f"{place}: rank {len(self.shape)}")
        _require(all(0 <= dim < 1 << 62 for dim in self.shape), f"{place}: shape {self.shape}")
        expected = math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8
        _require(self.nbytes == expected, f"{place}: {self.nbytes} bytes for {self.shape}")
        _require(
            self.offset >= _HEADER_BYTES and self.offset % _ALIGNMENT == 0,
            f"{place}: offset {self.offset}",
        )
        _require(_SHA256.fullmatch(self.sha256) is not None, f"{place}: bad sha256")
        _require(0 <= self.checksum < 1 << 64, f"{place}: bad checksum")


@dataclass(frozen=True)
class WeightTable:
    """All tensors of a weights file in its order, its size in bytes, the table's SHA-256."""

    entries: tuple[WeightEntry, ...]
    size: int
    digest: str

    def __post_init__(self) -> None:
        end = _HEADER_BYTES
        for entry in self.entries:
            _require(entry.offset >= end, f"weight {entry.name!r} overlaps the one before it")
            end = entry.offset + entry.nbytes
        _require(end <= self.size < 1 << 62, f"weights end at {end}, the file has {self.size}")
        names = {entry.name for entry in self.entries}
        _require(len(names) == len(self.entries), "two weights have the same name")
        _require(self.digest == table_digest(self.entries), "the weight table is damaged")


def table_digest(entries: tuple[WeightEntry, ...]) -> str:
    """SHA-256 of a table: which weights file a library belongs to."""
    text = json.dumps([astuple(entry) for entry in entries], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write(path: Path, params: Mapping[str, npt.NDArray[Any]]) -> WeightTable:
    """Write the tensors in the mapping's order, a few megabytes at a time; OSError on failure."""
    entries = []
    with path.open("wb") as file:
        file.write(bytes(_HEADER_BYTES))
        for name, array in params.items():
            offset = file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
            sha256, checksum = hashlib.sha256(), Checksum()
            for chunk in chunks(array):
                file.write(chunk.data)
                sha256.update(chunk.data)
                checksum.update(chunk)
            entries.append(
                WeightEntry(
                    name=name,
                    dtype=array.dtype.name,
                    shape=tuple(array.shape),
                    offset=offset,
                    nbytes=array.nbytes,
                    sha256=sha256.hexdigest(),
                    checksum=checksum.value,
                )
            )
            release(array)
        size = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        file.truncate(size)
        table = WeightTable(tuple(entries), size, table_digest(tuple(entries)))
        file.seek(0)
        file.write(_header(table))
    return table


def release(array: npt.NDArray[Any]) -> None:
    """Take the pages of a memory-mapped array out of this process: it has been read."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def check(path: Path, table: WeightTable, contents: bool = False) -> None:
    """Raise ArtifactError unless the file is the one of the table; `contents` reads all of it."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size != table.size:
            raise ArtifactError(
                f"{path}: has {size} bytes, expected {table.size}; copy the artifact again"
            )
        file.seek(0)
        if file.read(_HEADER.size) != _header(table):
            raise ArtifactError(f"{path}: belongs to another model, or its header is damaged")
        for entry in table.entries if contents else ():
            file.seek(entry.offset)
            sha256 = hashlib.sha256()
            for start in range(0, entry.nbytes, _CHUNK):
                sha256.update(file.read(min(_CHUNK, entry.nbytes - start)))
            if sha256.hexdigest() != entry.sha256:
                raise ArtifactError(f"{path}: weight {entry.name!r} is damaged")


def chunks(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[np.uint8]]:
    """The array's bytes, little-endian and row-major, in pieces; only the pieces are copied."""
    if array.size == 0:
        return
    array = array.reshape(1) if array.ndim == 0 else array
    if array.nbytes // array.shape[0] > _CHUNK and array.ndim > 1:
        yield from itertools.chain.from_iterable(chunks(row) for row in array)
        return
    rows = max(1, _CHUNK * array.shape[0] // array.nbytes)
    for start in range(0, array.shape[0], rows):
        piece = np.ascontiguousarray(array[start : start + rows])
        if piece.dtype.byteorder == ">":
            piece = piece.astype(piece.dtype.newbyteorder("<"))
        yield piece.reshape(-1).view(np.uint8)


class Checksum:
    """The sum of (2 i + 1) times the i-th 64-bit word, modulo 2^64; see weights.c."""

    def __init__(self) -> None:
        self._sum = 0
        self._words = 0
        self._rest = b""

    def update(self, data: npt.NDArray[np.uint8]) -> None:
        """Add bytes; they need not come in whole words."""
        if self._rest or data.size % 8:
            data = np.concatenate([np.frombuffer(self._rest, np.uint8), data])
        whole = data.size // 8 * 8
        self._rest = data[whole:].tobytes()
        words = data[:whole].view("<u8")
        factors = np.arange(self._words, self._words + words.size, dtype=np.uint64) * 2 + 1
        self._sum += int(np.sum(words * factors, dtype=np.uint64))
        self._words += words.size

    @property
    def value(self) -> int:
        """The checksum of the bytes so far."""
        last = int.from_bytes(self._rest, "little")
        return (self._sum + last * (2 * self._words + 1)) % (1 << 64)


def _header(table: WeightTable) -> bytes:
    return _HEADER.pack(
        _MAGIC, _VERSION, len(table.entries), table.size, bytes.fromhex(table.digest)
    )
