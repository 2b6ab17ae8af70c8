"""matmul(a bfloat16, w: bfloat16 param) -> float32  ----->  gemm_bf16(a, packed w: param)"""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax, te, tirx

from graphc.codegen.instructions import pairs
from graphc.codegen.templates import gemm_bf16
from graphc.passes.packing import Packing, plain


def pack_bf16(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A product of bfloat16 data and a bfloat16 weight of two dimensions, summed in float32."""
    name, _ = packing.operator(call)
    if name != "relax.matmul" or str(call.ty.dtype) != "float32":
        return None
    a, weight = call.args
    if not packing.is_weight(weight, "bfloat16") or str(a.ty.dtype) != "bfloat16":
        return None
    if weight.ty.ndim != 2 or a.ty.ndim < 2:
        return None
    depth, width = (int(n) for n in weight.ty.shape)
    columns = gemm_bf16.default_decisions(packing.target).columns
    packed = packing.packed_weight(
        weight,
        plain,
        f"bf16x{columns}",
        gemm_bf16.packed_shape(depth, width, columns),
        "int32",
        functools.partial(gemm_bf16.pack, columns=columns),
    )
    if depth % pairs.DEPTH:
        a = packing.te(_filled_up(depth), a)
    return packing.kernel(gemm_bf16.compute(width, columns), a, packed)


def _filled_up(depth: int) -> Any:
    """Rows with a zero behind them, so that they can be read two at a time."""
    full = -(-depth // pairs.DEPTH) * pairs.DEPTH

    def fill_up(a: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            inside = at[-1] < tirx.const(depth, "int64")
            return tirx.if_then_else(inside, a(*at), tirx.const(0, "bfloat16"))

        shape = [*a.shape[:-1], tirx.const(full, "int64")]
        return te.compute(shape, element, name="fill_up")

    return fill_up
