"""Hostile and broken GGUF files end in a typed error, never in a crash or a huge allocation."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_files import llama

from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.frontend import load
from graphc.frontend.gguf.reader import read
from graphc.frontend.gguf.tensors import weight


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


CASES = {
    "magic": (b"GGML" + header()[4:], "does not begin with GGUF"),
    "empty": (b"", "cannot be read"),
    "version": (header(9), "version 9"),
    "tensors": (header(tensors=1 << 60), "cut off or damaged"),
    "pairs": (header(pairs=1 << 60), "cut off or damaged"),
    "string": (header(pairs=1) + struct.pack("<Q", 1 << 62) + b"x" * 32, "cut off or damaged"),
    "type": (header(pairs=1) + text("key") + struct.pack("<IQ", 77, 0), "unknown type 77"),
    "array": (
        header(pairs=1) + text("key") + struct.pack("<IIQ", 9, 4, 1 << 61),
        "cut off or damaged",
    ),
    "nested": (
        header(pairs=1) + text("key") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9,
        "too deep",
    ),
    "twice": (header(pairs=2) + (text("key") + struct.pack("<IB", 0, 1)) * 2 + b"x" * 9, "twice"),
    "rank": (header(tensors=1) + text("w") + struct.pack("<I", 99) + b"x" * 99, "99 dimensions"),
    "shape": (header(tensors=1) + tensor("w", (1 << 50, 2), 0), "has the shape"),
    "product": (header(tensors=1) + tensor("w", (1 << 30, 1 << 30), 0), "too large"),
}


@pytest.mark.parametrize("case", CASES)
def test_broken_headers(case: str, tmp_path: Path) -> None:
    content, message = CASES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("shape", "kind", "error", "message"),
    [
        ((64, 64), 0, ModelError, "takes 16384 bytes"),
        ((40, 2), 3, ModelError, "Q4_1 cannot hold"),
        ((32, 2), 999, UnsupportedError, "element format 999"),
    ],
)
def test_broken_tensors(
    shape: tuple[int, ...], kind: int, error: type, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header(tensors=1) + tensor("w", shape, kind) + bytes(64))
    with pytest.raises(error, match=message):
        weight(read(path), read(path).tensors["w"]).read()


def test_metadata_that_promise_too_much(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    pairs = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    pairs += text("llama.block_count") + struct.pack("<II", 4, 1 << 31)
    path.write_bytes(header(tensors=1, pairs=2) + pairs + tensor("w", (4,), 0) + bytes(64))
    with pytest.raises(ModelError, match=r"block_count is 2147483648, with 1 tensors"):
        load(path)
    path.write_bytes(header(tensors=1) + tensor("w", (4,), 0) + bytes(64))
    with pytest.raises(ModelError, match=r"no general\.architecture"):
        load(path)


def test_flipped_and_missing_bytes(tmp_path: Path) -> None:
    """Any damage to the head of a file: a GraphcError, or a file that still can be read."""
    good = llama(tmp_path / "good.gguf").read_bytes()
    random = np.random.default_rng()
    path = tmp_path / "bad.gguf"
    for _ in range(60):
        damaged = bytearray(good[: random.integers(1, len(good))])
        for at in random.integers(0, min(len(damaged), 6000), 4):
            damaged[at] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            file = read(path)
            for entry in file.tensors.values():
                weight(file, entry).read()
        except GraphcError as error:
            assert str(path) in str(error)
