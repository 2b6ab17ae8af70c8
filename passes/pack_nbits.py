"""Composites of quantised weights  ----->  n-bit kernels over packed records.

    quantized_matmul(x, codes, ..)   ----->  gemm_nbits(quantize_groups(x), records)
                                     ----->  gemm_nbits(x, records)            float activations
    quantized_take(codes, .., rows)  ----->  take_nbits(records, rows)

Products of the same x share its quantised form; a gather and a product share their records.
"""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax

from graphc.codegen.templates import gemm_nbits, nbits_format, quantize_groups, take_nbits
from graphc.codegen.templates.nbits_format import Format
from graphc.ir import QuantizedWeight
from graphc.passes.packing import Packing
from graphc.passes.quantized import MATMUL, TAKE
from graphc.targets.target import Target


def pack_nbits(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A product with, or a gather from, a quantised weight whose groups are whole vectors."""
    name, attrs = packing.operator(call)
    if name not in (MATMUL, TAKE):
        return None
    operands = list(call.args[1:] if name == MATMUL else call.args[:-1])
    if not all(packing.is_weight(operand) for operand in operands):
        return None
    depth, width = (int(extent) for extent in operands[0].ty.shape)
    lanes = min(max(packing.target.lanes(32), 4), 16)
    if not nbits_format.suits(depth, int(attrs["group"]), lanes):
        return None
    form, records = _records(packing, operands, attrs, lanes)
    if name == TAKE:
        return _take(packing, form, records, call)
    x = call.args[0]
    quantized = str(attrs["activation"]) == "int8"
    if quantized:
        x = _activations(packing, x, form)
    return packing.kernel(gemm_nbits.compute(form, width, quantized), x, records)


def _records(packing: Packing, operands: list[Any], attrs: Any, lanes: int) -> tuple[Format, Any]:
    """The packed parameter of a weight."""
    params, names = packing.model.params, [operand.name for operand in operands]

    def read(name: str) -> Any:
        return functools.partial(params.__getitem__, name)

    weight = QuantizedWeight(
        codes=read(names[0]),
        scales=read(names[1]),
        minima=read(names[2]) if len(names) > 2 else None,
        group=int(attrs["group"]),
        bits=int(attrs["bits"]),
    )
    form: Format = packing.once(
        ("format", *names),
        lambda: nbits_format.format_of(weight, lanes, _reads_halves(packing.target)),
    )
    depth, width = (int(extent) for extent in operands[0].ty.shape)
    name = f"{names[0].removesuffix('.codes')}.{form.bits}bits{lanes}"
    make = functools.partial(nbits_format.pack, weight, form)
    return form, packing.parameter(name, form.shape(depth, width), "int32", make)


def _reads_halves(target: Target) -> bool:
    """Whether float16 becomes float32 in one instruction."""
    return target.has("f16c") or target.has("neon")


def _activations(packing: Packing, x: Any, form: Format) -> Any:
    """The int8 records of x, emitted once for all products that read them in this form."""

    def emit() -> Any:
        function = quantize_groups.build(x.ty, form, packing.target)
        shape = quantize_groups.records_shape(x.ty, form)
        return packing.emit(packing.scheduled(function, [x], relax.TensorType(shape, "int32")))

    return packing.once(("activations", x, form.group, form.offset), emit)


def _take(packing: Packing, form: Format, records: Any, call: Any) -> relax.Expr:
    rows = call.args[-1]
    function = take_nbits.build(rows.ty, records.ty, form, call.ty, packing.target)
    return packing.scheduled(function, [records, rows], call.ty)
