"""Rows of activations as uint8, each with its own scale and zero point (passes/quantized_rows.py).

Two passes over a row: its range, then the codes; the second reads the row from the first cache.
Bytes: 4 read and 1 written for each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.targets.target import Target

VERSION = 1
LEVELS = 255.0
"""The largest code."""

# Vector accumulators that hide the latency of a minimum.
ACCUMULATORS = 2


def build(arguments: Sequence[Any], attrs: Any, result: Any, target: Target) -> tirx.PrimFunc:
    """graphc.quantize_rows(x [.., K]) -> codes, scale, zero."""
    del attrs
    types = [arguments[0].ty, *result.fields]
    x, codes, scale, zero = tir.fresh_buffers(types, ["x", "codes", "scale", "zero"])
    rows, depth = tir.product(x.shape[:-1]), x.shape[-1]
    lanes = target.lanes(32)
    with tir.function("quantize_rows", [x, codes, scale, zero], f"quantize_rows/{VERSION}") as made:
        x_rows, code_rows = tir.view(x, [rows, depth]), tir.view(codes, [rows, depth])
        scale_rows, zero_rows = tir.view(scale, [rows]), tir.view(zero, [rows])
        with tir.rows_in_parallel(rows, rows * depth) as row:
            step, inverse, point = _range(x_rows, row, depth, lanes)
            tir.store(scale_rows, [row], step)
            tir.store(zero_rows, [row], point.astype("int32"))

            def write(start: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    value = tir.load(x_rows, [row, start + lane]) * inverse
                    value = tirx.nearbyint(value) + point
                    value = tirx.min(tirx.max(value, tir.f32(0.0)), tir.f32(LEVELS))
                    code = value.astype("int32").astype("uint8")
                    tir.store(code_rows, [row, start + lane], code)

            tir.row(depth, lanes, write)
    return made.get()


def _range(x: Any, row: Any, depth: Any, lanes: int) -> tuple[Any, Any, Any]:
    """The step between two codes of the row, its inverse, and the code of 0 as a float."""
    lanes *= ACCUMULATORS
    low, high = tir.local([lanes]), tir.local([lanes])
    tir.fill(low, lanes, tir.f32(0.0))
    tir.fill(high, lanes, tir.f32(0.0))

    def join(start: Any, width: int) -> None:
        for extreme, combine in ((low, tirx.min), (high, tirx.max)):
            with tir.vector(width) as lane:
                value = tir.load(x, [row, start + lane])
                tir.store(extreme, [lane], combine(tir.load(extreme, [lane]), value))

    tir.row(depth, lanes, join)
    bottom = tir.bind(tir.horizontal(low, lanes, tirx.min))
    span = tir.bind(tir.horizontal(high, lanes, tirx.max) - bottom)
    none = span == tir.f32(0.0)
    one = tir.f32(1.0)
    step = tir.bind(tirx.Select(none, one, span * tir.f32(1.0 / LEVELS)))
    inverse = tir.bind(tirx.Select(none, one, tir.f32(LEVELS) / span))
    return step, inverse, tir.bind(tirx.nearbyint(tir.f32(0.0) - bottom * inverse))
