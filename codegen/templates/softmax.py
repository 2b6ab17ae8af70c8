"""Softmax over the last dimension: maximum, exponentials with their sum, scale; a row at a time.

A row whose maximum is -inf gives NaN, as the formula does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.math import exp_low
from graphc.targets.target import Target

TEMPLATE = "softmax/1"


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.softmax(x) over the last axis in float32."""
    source = arguments[0].ty
    if str(source.dtype) != "float32" or int(attrs.axis) not in (-1, source.ndim - 1):
        return None
    params = tir.fresh_buffers([source, result], ["x", "y"])
    lanes = target.lanes(32)
    *lead, width = params[0].shape
    rows = tir.product(lead)
    with tir.function("softmax", params, TEMPLATE) as build_:
        x, y = (tir.view(p, [rows, width]) for p in params)
        with tir.rows_in_parallel(rows, rows * width) as row:
            highest = tir.local([lanes])
            tir.fill(highest, lanes, tir.f32(float("-inf")))

            def maximum(start: Any, count: int) -> None:
                with tir.vector(count) as lane:
                    joined = tirx.max(tir.load(highest, [lane]), tir.load(x, [row, start + lane]))
                    tir.store(highest, [lane], joined)

            tir.row(width, lanes, maximum)
            peak = tir.bind(tir.horizontal(highest, lanes, tirx.max))
            total = tir.local([lanes])
            tir.fill(total, lanes, tir.f32(0.0))

            def exponentials(start: Any, count: int) -> None:
                power = tir.local([count])
                with tir.vector(count) as lane:
                    tir.store(power, [lane], exp_low(tir.load(x, [row, start + lane]) - peak))
                with tir.vector(count) as lane:
                    tir.store(y, [row, start + lane], tir.load(power, [lane]))
                with tir.vector(count) as lane:
                    summed = tir.load(total, [lane]) + tir.load(power, [lane])
                    tir.store(total, [lane], summed)

            tir.row(width, lanes, exponentials)
            joined = tir.horizontal(total, lanes, lambda a, b: a + b)
            scale = tir.bind(tir.f32(1.0) / joined)

            def normalise(start: Any, count: int) -> None:
                with tir.vector(count) as lane:
                    at = [row, start + lane]
                    tir.store(y, at, tir.load(y, at) * scale)

            tir.row(width, lanes, normalise)
    return build_.get()
