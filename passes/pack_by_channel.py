"""Products with 8-bit weights of one scale per column, activations quantised while running.

quantized_matmul(x, codes, scales)   ----->   codes, step, zero of the rows of x
                                              (gemm_int8 - zero * sums) * step * scales
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from tvm import relax

from graphc.codegen.templates import gemm, quantize_rows
from graphc.passes.pack_int8 import product
from graphc.passes.packing import Packing, plain
from graphc.passes.quantized import MATMUL


def pack_by_channel(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A symmetric quantised product whose groups are whole columns."""
    name, attrs = packing.operator(call)
    if name != MATMUL or len(call.args) != 3:
        return None
    x, codes, scales = call.args
    depth, width = (int(extent) for extent in codes.ty.shape)
    if int(attrs["group"]) != depth or not packing.is_weight(codes, "int8"):
        return None
    flat = packing.emit(relax.op.reshape(scales, [width]))
    if str(attrs["activation"]) == "float":
        return relax.op.multiply(packing.emit(_float_product(packing, x, codes)), flat)
    return _int8_product(packing, x, codes, flat)


def _float_product(packing: Packing, x: Any, codes: Any) -> relax.Call:
    """The codes as they are, widened in the GEMM's registers."""
    depth, width = (int(extent) for extent in codes.ty.shape)
    columns = gemm.default_decisions(packing.target).columns
    packed = packing.packed_weight(
        codes,
        plain,
        f"packed{columns}",
        gemm.packed_shape(depth, width, columns),
        "int8",
        functools.partial(gemm.pack, columns=columns),
    )
    return packing.kernel(gemm.compute(width, columns), x, packed)


def _int8_product(packing: Packing, x: Any, codes: Any, scales: Any) -> relax.Expr:
    op, width = relax.op, int(codes.ty.shape[1])
    left, step, zero = packing.once(("rows", x), lambda: _rows(packing, x))
    sums = packing.parameter(
        f"{codes.name}.sums", [width], "int32", functools.partial(_sums, packing, codes.name)
    )
    total = packing.emit(product(packing, left, codes))
    total = packing.emit(op.subtract(total, packing.emit(op.multiply(zero, sums))))
    y = packing.emit(op.multiply(packing.emit(op.astype(total, "float32")), step))
    return op.multiply(y, scales)


def _rows(packing: Packing, x: Any) -> list[Any]:
    """The codes of x [.., K], the step and the zero point of each row [.., 1]."""
    *lead, depth = x.ty.shape
    kinds = ((depth, "uint8"), (1, "float32"), (1, "int32"))
    types = [relax.TensorType([*lead, last], dtype) for last, dtype in kinds]
    function = quantize_rows.build([x], None, relax.TupleType(types), packing.target)
    whole = packing.emit(packing.scheduled(function, [x], types))
    return [packing.emit(relax.TupleGetItem(whole, index)) for index in range(3)]


def _sums(packing: Packing, name: str) -> np.ndarray:
    sums: np.ndarray = packing.model.params[name].sum(axis=0, dtype=np.int32)
    return sums
