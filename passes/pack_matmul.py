"""matmul(x, w: param [K, N])  ----->  gemm(x, packed w: param [panels, K, columns])"""

from __future__ import annotations

import functools
from typing import Any

from tvm import relax

from graphc.codegen.templates import gemm
from graphc.passes.packing import Matrix, Packing, plain


def pack_matmul(packing: Packing, call: relax.Call) -> relax.Expr | None:
    """A product of float32 data and a float32 weight of two dimensions."""
    name, _ = packing.operator(call)
    if name != "relax.matmul":
        return None
    x, weight = call.args
    if not packing.is_weight(weight, "float32") or str(x.ty.dtype) != "float32":
        return None
    if weight.ty.ndim != 2 or x.ty.ndim < 2:
        return None
    depth, width = (int(n) for n in weight.ty.shape)
    return product(packing, x, weight, Matrix(depth, width, plain))


def product(packing: Packing, x: Any, weight: Any, matrix: Matrix) -> relax.Call:
    """x [.., K] times a float32 weight that is seen as a matrix, packed for the GEMM template."""
    columns = gemm.default_decisions(packing.target).columns
    packed = packing.packed_weight(
        weight,
        matrix.of,
        f"packed{columns}",
        gemm.packed_shape(matrix.depth, matrix.width, columns),
        "float32",
        functools.partial(gemm.pack, columns=columns),
    )
    return packing.kernel(gemm.compute(matrix.width, columns), x, packed)
