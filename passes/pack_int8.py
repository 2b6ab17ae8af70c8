"""matmul(a uint8, w: int8 param) -> int32  ----->  gemm_int8(a, packed w: param)"""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax, te, tirx

from graphc.codegen.instructions import dot
from graphc.codegen.templates import gemm_int8
from graphc.passes.packing import Packing, plain


def pack_int8(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A product of uint8 data and an int8 weight of two dimensions, summed in int32."""
    name, _ = packing.operator(call)
    if name != "relax.matmul" or str(call.ty.dtype) != "int32":
        return None
    a, weight = call.args
    if not packing.is_weight(weight, "int8") or str(a.ty.dtype) != "uint8":
        return None
    if weight.ty.ndim != 2 or a.ty.ndim < 2:
        return None
    return product(packing, a, weight)


def product(packing: Packing, a: Any, weight: Any) -> relax.Call:
    """uint8 a [.., K] times an int8 weight [K, N], packed for the GEMM template."""
    depth, width = (int(n) for n in weight.ty.shape)
    columns = gemm_int8.default_decisions(packing.target).columns
    packed = packing.packed_weight(
        weight,
        plain,
        f"int8x{columns}",
        gemm_int8.packed_shape(depth, width, columns),
        "int8",
        functools.partial(gemm_int8.pack, columns=columns),
    )
    if depth % dot.DEPTH:
        a = packing.te(_filled_up(depth), a)
    return packing.kernel(gemm_int8.compute(width, columns), a, packed)


def _filled_up(depth: int) -> Any:
    """Rows with zeros behind them, so that they can be read four bytes at a time."""
    full = -(-depth // dot.DEPTH) * dot.DEPTH

    def fill_up(a: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            inside = at[-1] < tirx.const(depth, "int64")
            return tirx.if_then_else(inside, a(*at), tirx.const(0, "uint8"))

        shape = [*a.shape[:-1], tirx.const(full, "int64")]
        return te.compute(shape, element, name="fill_up")

    return fill_up
