"""Rows of a packed weight of few bits, as an embedding reads them: y[.., k] = w[k, rows[..]]."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates import nbits_format as nbits
from graphc.codegen.templates.nbits_format import Format
from graphc.targets.target import Target

TEMPLATE = "take_nbits/1"


def build(rows: Any, records: Any, form: Format, result: Any, target: Target) -> tirx.PrimFunc:
    """A kernel (records, rows [..]) -> float32 [.., K]; indices were checked before."""
    del target
    packed, index, out = tir.fresh_buffers([records, rows, result], ["records", "rows", "y"])
    count = tir.product(index.shape)
    groups = int(records.shape[1])
    depth = groups * form.group
    with tir.function("take_nbits", [packed, index, out], TEMPLATE) as build_:
        flat, y = tir.view(index, [count]), tir.view(out, [count, depth])
        with tir.rows_in_parallel(count, count * tir.const(depth)) as i:
            row = tir.bind(tir.load(flat, [i]).astype("int64"))
            panel, lane = tir.bind(row // form.lanes), tir.bind(row % form.lanes)
            with tir.serial(groups) as g:
                scale = tir.bind(nbits.scale(form, packed, panel, g, lane))
                minimum = None
                if not form.symmetric:
                    minimum = tir.bind(nbits.minimum(form, packed, panel, g, lane))
                with tir.serial(form.vectors) as v:
                    at = g * tir.const(form.group) + v * tir.const(form.depth)
                    for k in range(form.depth):
                        code = nbits.code(form, packed, panel, g, lane, v * form.depth + k)
                        plain = code - tirx.const(form.offset, "int32")
                        value = plain.astype("float32") * scale
                        if minimum is not None:
                            value = value + minimum
                        tir.store(y, [i, at + tir.const(k)], value)
    return build_.get()
