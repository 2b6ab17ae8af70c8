"""How weights of few bits and activations of 8 lie in memory for the n-bit kernels, as int32 words.

    weights      [N / lanes, K / group, words]     one record for a group of `lanes` outputs:
                 codes: vectors of one word for each output; a byte is one code, or two of 4 bits
                   4 bits: byte j of vector v: k = 8 v + j in the low half, 8 v + 4 + j in the high
                   8 bits: byte j of vector v: k = 4 v + j
                 scales, then minima: `lanes` float16 or float32
    activations  [M, K / group, 2 + group / 4]     one record for a group of a row:
                 scale (float32), correction, then the int8 values, four to a word

Codes are unsigned: symmetric ones are stored plus `offset`. The correction takes that out again,
-offset * sum(x) as int32, or serves the minima: scale * sum(x) as float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from graphc.codegen import builder as tir
from graphc.ir import QuantizedWeight

HEADER = 2
"""Words before the values in a record of activations."""


@dataclass(frozen=True)
class Format:
    """`bits` is what a code takes in memory, 4 or 8; `half`: scales and minima are float16."""

    bits: int
    group: int
    lanes: int
    symmetric: bool
    half: bool

    def __post_init__(self) -> None:
        assert self.bits in (4, 8) and self.group % self.depth == 0, self

    @property
    def depth(self) -> int:
        """How many k one vector of words holds."""
        return 32 // self.bits

    @property
    def vectors(self) -> int:
        """Vectors of codes in a record."""
        return self.group // self.depth

    @property
    def scale_words(self) -> int:
        """Words of the scales of a record."""
        return self.lanes // 2 if self.half else self.lanes

    @property
    def words(self) -> int:
        """Words of a whole record."""
        parts = 1 if self.symmetric else 2
        return self.vectors * self.lanes + parts * self.scale_words

    @property
    def offset(self) -> int:
        """What was added to symmetric codes."""
        return (1 << (self.bits - 1)) if self.symmetric else 0

    @property
    def activation_words(self) -> int:
        """Words of a record of activations."""
        return HEADER + self.group // 4

    def shape(self, depth: int, width: int) -> tuple[int, int, int]:
        """The shape of a packed weight [depth, width]."""
        return (-(-width // self.lanes), depth // self.group, self.words)


def suits(depth: int, group: int, lanes: int) -> bool:
    """Whether weights of this depth in such groups can be packed: whole vectors in each group."""
    return depth % group == 0 and group % 8 == 0 and lanes % 4 == 0


def format_of(weight: QuantizedWeight, lanes: int, halves: bool) -> Format:
    """The smallest format that holds the weight exactly; `halves`: float16 can be read."""
    scales, minima = weight.read_scales(), weight.read_minima()
    half = halves and _are_halves(scales) and (minima is None or _are_halves(minima))
    bits = 4 if weight.bits <= 4 else 8
    return Format(bits, weight.group, lanes, weight.minima is None, half)


def _are_halves(values: np.ndarray) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))


def pack(weight: QuantizedWeight, form: Format) -> np.ndarray:
    """The records of a weight; columns are filled up with zeros to whole panels."""
    codes = weight.read_codes()
    depth, width = codes.shape
    panels, groups, words = form.shape(depth, width)
    packed = np.empty((panels, groups, words), np.int32)
    scales, minima = weight.read_scales(), weight.read_minima()
    step = max(1, (1 << 24) // (depth * form.lanes))  # a few panels at a time: little memory
    for first in range(0, panels, step):
        last = min(first + step, panels)
        columns = slice(first * form.lanes, min(last * form.lanes, width))
        part = packed[first:last]
        ends = form.vectors * form.lanes
        part[:, :, :ends] = _pack_codes(codes[:, columns], form, last - first)
        for values in (scales,) if minima is None else (scales, minima):
            begins, ends = ends, ends + form.scale_words
            part[:, :, begins:ends] = _pack_floats(values[:, columns], form, last - first)
    return packed


def _pack_codes(codes: np.ndarray, form: Format, panels: int) -> np.ndarray:
    depth, width = codes.shape
    full = np.zeros((depth, panels * form.lanes), np.uint8)
    full[:, :width] = (codes.astype(np.int16) + form.offset).astype(np.uint8)
    halves = 8 // form.bits
    shape = (depth // form.group, form.vectors, halves, 4, panels, form.lanes)
    cut = full.reshape(shape).transpose(4, 0, 1, 5, 3, 2)  # panel, group, vector, lane, byte, half
    assert int(full.max(initial=0)) < 1 << form.bits, (int(full.max()), form)
    value = cut[..., 0] if halves == 1 else cut[..., 0] | cut[..., 1] << np.uint8(4)
    words = np.ascontiguousarray(value).view(np.int32)
    return words.reshape(panels, depth // form.group, -1)


def _pack_floats(values: np.ndarray, form: Format, panels: int) -> np.ndarray:
    groups, width = values.shape
    full = np.zeros((groups, panels * form.lanes), np.float16 if form.half else np.float32)
    full[:, :width] = values
    cut = full.reshape(groups, panels, form.lanes).transpose(1, 0, 2)
    return np.ascontiguousarray(cut).view(np.int32).reshape(panels, groups, -1)


# The same as expressions of TIR, for definitions.


def code(form: Format, packed: Any, panel: Any, group: Any, lane: Any, k: Any) -> Any:
    """The code at (group, k within it) of an output, as int32 without the offset taken out."""
    vector, within = k // form.depth, k % form.depth
    word = packed[panel, group, vector * form.lanes + lane]
    shift = (within % 4) * 8 + (within // 4) * 4
    return (word >> shift.astype("int32")) & tirx.const((1 << form.bits) - 1, "int32")


def scale(form: Format, packed: Any, panel: Any, group: Any, lane: Any) -> Any:
    """The scale of a group of an output."""
    return _float(form, packed, panel, group, lane, form.vectors * form.lanes)


def minimum(form: Format, packed: Any, panel: Any, group: Any, lane: Any) -> Any:
    """The minimum of a group of an output, of an asymmetric weight."""
    first = form.vectors * form.lanes + form.scale_words
    return _float(form, packed, panel, group, lane, first)


def _float(form: Format, packed: Any, panel: Any, group: Any, lane: Any, first: int) -> Any:
    if not form.half:
        return tirx.reinterpret("float32", packed[panel, group, lane + tir.const(first)])
    word = packed[panel, group, lane // 2 + tir.const(first)]
    bits = (word >> ((lane % 2) * 16).astype("int32")).astype("uint16")
    return tirx.reinterpret("float16", bits).astype("float32")
