"""ggml's block formats as codes, scales and minima, exactly as ggml dequantises them.

Each row of a tensor is a run of blocks; K-quants have scales of 6 or 4 bits for sub-blocks, which
are multiplied out in float32 just as ggml does, so that codes * scales + minima has its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Parts: TypeAlias = "tuple[np.ndarray, npt.NDArray[np.float32], npt.NDArray[np.float32] | None]"
"""codes [.., elements] (int8 without minima, else uint8), scales and minima [.., groups]."""


@dataclass(frozen=True)
class Block:
    """A format: `size` bytes hold `elements` codes of `bits` bits, in groups of `group`."""

    name: str
    elements: int
    size: int
    group: int
    bits: int
    split: Callable[[Bytes], Parts]


def split(block: Block, raw: Bytes, rows: int) -> Parts:
    """codes [rows, K], scales and minima [rows, K / group] from the bytes of a tensor."""
    codes, scales, minima = block.split(raw.reshape(-1, block.size))
    lows = None if minima is None else minima.reshape(rows, -1)
    return codes.reshape(rows, -1), scales.reshape(rows, -1), lows


def _half(blocks: Bytes, at: int) -> npt.NDArray[np.float32]:
    """A float16 of every block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(raw: Bytes) -> Bytes:
    """[blocks, n] -> [blocks, 2 n]: the low halves, then the high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _bits(raw: Bytes) -> Bytes:
    """32 bits of every block, lowest first: [blocks, 4] -> [blocks, 32]."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def _planes(raw: Bytes, bits: int, run: int) -> Bytes:
    """Codes of a few bits stored in planes: `run` bytes hold runs of the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    value = raw.reshape(len(raw), -1, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return value.reshape(len(raw), -1)


def _signed(codes: Bytes, offset: int) -> npt.NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(offset)


def _q4_0(b: Bytes) -> Parts:
    return _signed(_nibbles(b[:, 2:]), 8), _half(b, 0), None


def _q4_1(b: Bytes) -> Parts:
    return _nibbles(b[:, 4:]), _half(b, 0), _half(b, 2)


def _q5_0(b: Bytes) -> Parts:
    codes = _nibbles(b[:, 6:]) | _bits(b[:, 2:6]) << np.uint8(4)
    return _signed(codes, 16), _half(b, 0), None


def _q5_1(b: Bytes) -> Parts:
    codes = _nibbles(b[:, 8:]) | _bits(b[:, 4:8]) << np.uint8(4)
    return codes, _half(b, 0), _half(b, 2)


def _q8_0(b: Bytes) -> Parts:
    return np.ascontiguousarray(b[:, 2:]).view(np.int8), _half(b, 0), None


def _q2_k(b: Bytes) -> Parts:
    packed, codes = b[:, :16], _planes(b[:, 16:80], 2, 32)
    scales = _half(b, 80) * (packed & 15).astype(np.float32)
    minima = _half(b, 82) * (packed >> 4).astype(np.float32)
    return codes, scales, -minima


def _q3_k(b: Bytes) -> Parts:
    low = _planes(b[:, 32:96], 2, 32)
    high = _planes(b[:, :32], 1, 32)  # set where nothing is taken off
    codes = low.view(np.int8) - ((high ^ 1) << np.uint8(2)).view(np.int8)
    packed = b[:, 96:108]
    scales = _nibbles(packed[:, :8]) | _planes(packed[:, 8:], 2, 4) << np.uint8(4)
    return codes, _half(b, 108) * _signed(scales, 32).astype(np.float32), None


def _six_bit_pairs(b: Bytes) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the last four take bits from all."""
    low, mid, both = b[:, :4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate([low & 63, both & 15 | low >> 2 & 48], axis=1)
    minima = np.concatenate([mid & 63, both >> 4 | mid >> 2 & 48], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(b: Bytes) -> Parts:
    scales, minima = _six_bit_pairs(b[:, 4:16])
    return _planes(b[:, 16:], 4, 32), _half(b, 0) * scales, -(_half(b, 2) * minima)


def _q5_k(b: Bytes) -> Parts:
    scales, minima = _six_bit_pairs(b[:, 4:16])
    codes = _planes(b[:, 48:], 4, 32) | _planes(b[:, 16:48], 1, 32) << np.uint8(4)
    return codes, _half(b, 0) * scales, -(_half(b, 2) * minima)


def _q6_k(b: Bytes) -> Parts:
    codes = _planes(b[:, :128], 4, 64) | _planes(b[:, 128:192], 2, 32) << np.uint8(4)
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return _signed(codes, 32), _half(b, 208) * scales, None


BLOCKS: Final[Mapping[int, Block]] = {
    2: Block("Q4_0", 32, 18, 32, 4, _q4_0),
    3: Block("Q4_1", 32, 20, 32, 4, _q4_1),
    6: Block("Q5_0", 32, 22, 32, 5, _q5_0),
    7: Block("Q5_1", 32, 24, 32, 5, _q5_1),
    8: Block("Q8_0", 32, 34, 32, 8, _q8_0),
    10: Block("Q2_K", 256, 84, 16, 2, _q2_k),
    11: Block("Q3_K", 256, 110, 16, 3, _q3_k),
    12: Block("Q4_K", 256, 144, 32, 4, _q4_k),
    13: Block("Q5_K", 256, 176, 32, 5, _q5_k),
    14: Block("Q6_K", 256, 210, 16, 6, _q6_k),
}
"""By ggml's number of the type."""
