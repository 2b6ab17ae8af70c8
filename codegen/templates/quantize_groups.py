"""Activations in groups of int8, as the n-bit products read them (nbits_format.py).

    scale[m, g] = max |x[m, g, :]| / 127        q[m, g, k] = round(x[m, g, k] / scale[m, g])

Once for all products that read the same activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.instructions import convert
from graphc.codegen.instructions.instruction import imported, store_vector, vector
from graphc.codegen.templates.nbits_format import HEADER, Format
from graphc.targets.target import Target

TEMPLATE = "quantize_groups/1"

_WRITTEN_OUT = 8
_TINY = 1e-30  # instead of a division by 0


def build(source: Any, form: Format, target: Target) -> tirx.PrimFunc:
    """A kernel x [.., K] float32 -> records int32 [.., K / group, 2 + group / 4]."""
    lanes = max(target.lanes(32), 4)
    while form.group % lanes:
        lanes //= 2
    *lead, depth = source.shape
    groups = int(depth) // form.group
    words = form.activation_words
    x, records = tir.fresh_buffers([source, _records(source, form)], ["x", "records"])
    rows = tir.product(x.shape[:-1])
    rounded = convert.round_bytes(lanes)
    largest, sum_of = convert.largest(lanes), convert.total(lanes)
    used = imported([rounded, largest, sum_of])
    with tir.function("quantize_groups", [x, records], TEMPLATE) as build_, used:
        values = tir.view(x, [rows, int(depth)])
        out = tir.view(records, [rows, groups * words])
        floats = tir.view_as(records, "float32", [rows, groups * words])
        work = rows * tir.const(int(depth))
        with tir.rows_in_parallel(rows, work) as row, tir.serial(groups) as group:
            first = tir.bind(group * tir.const(form.group))
            record = tir.bind(group * tir.const(words))
            scale, inverse = _scale(values, row, first, form.group, lanes, largest)
            total = tir.local([lanes])
            tir.fill(total, lanes, tir.f32(0.0))

            def quantized(part: Any) -> None:
                at = first + part * tir.const(lanes)
                whole = _whole(values, row, at, inverse, lanes, total)
                place = record + tir.const(HEADER) + part * tir.const(lanes // 4)
                if lanes == 4:
                    tir.store(out, [row, place], rounded(whole))
                else:
                    store_vector(out, [row, place], lanes // 4, rounded(whole))

            _parts(form.group // lanes, quantized)
            tir.store(floats, [row, record], scale)
            summed = tir.bind(sum_of(vector(total, [tir.const(0)], lanes)))
            correction = [row, record + tir.const(1)]
            if form.symmetric:
                whole = (summed * tir.f32(-form.offset)).astype("int32")
                tir.store(out, correction, whole)
            else:
                tir.store(floats, correction, summed * scale)
    del lead
    return build_.get()


def _records(source: Any, form: Format) -> Any:
    from tvm import relax

    return relax.TensorType(records_shape(source, form), "int32")


def records_shape(source: Any, form: Format) -> list[Any]:
    """The shape of the records of activations of this type."""
    *lead, depth = source.shape
    return [*lead, tir.const(int(depth) // form.group), tir.const(form.activation_words)]


def _parts(count: int, body: Callable[[Any], None]) -> None:
    """`body` for each part of a group, written out where they are few: then all is in registers."""
    if count > _WRITTEN_OUT:
        with tir.serial(count) as part:
            body(part)
        return
    for part in range(count):
        body(tir.const(part))


def _scale(
    values: Any, row: Any, first: Any, group: int, lanes: int, largest: Any
) -> tuple[Any, Any]:
    """The scale of a group, and what its values are multiplied by."""
    highest, zero = tir.local([lanes]), [tir.const(0)]
    tir.fill(highest, lanes, tir.f32(0.0))

    def join(part: Any) -> None:
        value = tirx.abs(vector(values, [row, first + part * tir.const(lanes)], lanes))
        store_vector(highest, zero, lanes, tirx.max(value, vector(highest, zero, lanes)))

    _parts(group // lanes, join)
    peak = tir.bind(largest(vector(highest, zero, lanes)))
    inverse = tir.f32(127.0) / tirx.max(peak, tir.f32(_TINY))
    return tir.bind(peak * tir.f32(1.0 / 127.0)), tir.bind(inverse)


def _whole(values: Any, row: Any, at: Any, inverse: Any, lanes: int, total: Any) -> Any:
    """The whole numbers of a vector of values, as floats; they are added to `total`."""
    zero = [tir.const(0)]
    spread = tirx.Broadcast(inverse, tirx.const(lanes, "int32"))
    whole = tir.local([lanes])
    value = tirx.nearbyint(vector(values, [row, at], lanes) * spread)
    store_vector(whole, zero, lanes, value)
    store_vector(total, zero, lanes, vector(total, zero, lanes) + vector(whole, zero, lanes))
    return vector(whole, zero, lanes)
