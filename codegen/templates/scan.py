"""Running sums along one axis: y[k] = x[0] + ... + x[k], exclusive: without x[k].

for (outer) in parallel:  for a vector of inner elements:  for k: acc += x[outer, k, inner]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.targets.target import Target

TEMPLATE = "scan/1"


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.cumsum(x) over one axis, of any type that can be added."""
    source = arguments[0].ty
    if attrs.axis is None or str(source.dtype) == "bool":
        return None
    axis = int(attrs.axis) % source.ndim
    params = tir.fresh_buffers([source, result], ["x", "y"])
    shape = list(params[0].shape)
    outer, inner = tir.product(shape[:axis]), tir.product(shape[axis + 1 :])
    length, dtype = shape[axis], str(result.dtype)
    with tir.function("cumsum", params, TEMPLATE) as build_:
        x, y = (tir.view(p, [outer, length, inner]) for p in params)
        with tir.rows_in_parallel(outer, outer * length * inner) as row:

            def columns(start: Any, count: int) -> None:
                total = tir.local([count], dtype)
                tir.fill(total, count, tirx.const(0, dtype))
                with tir.serial(length) as k:

                    def publish() -> None:
                        with tir.vector(count) as lane:
                            tir.store(y, [row, k, start + lane], tir.load(total, [lane]))

                    if bool(attrs.exclusive):
                        publish()
                    with tir.vector(count) as lane:
                        term = tirx.Cast(dtype, tir.load(x, [row, k, start + lane]))
                        tir.store(total, [lane], tir.load(total, [lane]) + term)
                    if not bool(attrs.exclusive):
                        publish()

            tir.row(inner, target.lanes(32), columns)
    return build_.get()
