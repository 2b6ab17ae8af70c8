"""Matrix products: linear, matmul and the forms with an addend."""

from __future__ import annotations

from tvm.relax import op

from graphc.frontend.onnx.values import Value
from graphc.frontend.torch_export.call import Call, Convert, Result, Table


def _product(call: Call) -> Result:
    right = "mat2" if "mat2" in call.arguments else "vec" if "vec" in call.arguments else "other"
    return call.apply("MatMul", [call.value("self"), call.value(right)])


def _dot(call: Call) -> Result:
    return call.apply("MatMul", [call.value("self"), call.value("tensor")])


def _linear(call: Call) -> Result:
    """x W^T + b; W is [out, in]."""
    weight, bias = call.value("weight"), call.optional("bias")
    turned = weight
    if weight.rank == 2:  # not folded here: a tied weight stays one
        turned = call.part("weight").emit(op.permute_dims(call.expr(weight), [1, 0]))
    inside = call if bias is None else call.part("product")
    product = inside.apply("MatMul", [call.value("input"), turned])
    return product if bias is None else call.apply("Add", [product, bias])


def _with_addend(left: str, right: str) -> Convert:
    def convert(call: Call) -> Result:
        """beta * self + alpha * left @ right."""
        product = call.part("product").apply("MatMul", [call.value(left), call.value(right)])
        alpha, beta = call.get("alpha", 1), call.get("beta", 1)
        product = _scaled(call.part("scaled"), product, alpha)
        if beta == 0:
            return product
        return call.apply("Add", [product, _scaled(call.part("addend"), call.value("self"), beta)])

    return convert


def _scaled(call: Call, value: Value, factor: float) -> Value:
    return value if factor == 1 else call.apply("Mul", [value, call.scalar(factor, value.dtype)])


TABLE: Table = {
    "linear.default": _linear,
    "matmul.default": _product,
    "mm.default": _product,
    "bmm.default": _product,
    "mv.default": _product,
    "dot.default": _dot,
    "addmm.default": _with_addend("mat1", "mat2"),
    "baddbmm.default": _with_addend("batch1", "batch2"),
}
