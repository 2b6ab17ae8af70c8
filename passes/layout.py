"""Packs weights for the kernel templates that will read them.

    matmul(x, w: param [K, N])  ----->  gemm(x, packed w: param [panels, K, columns])
    conv2d(x, w: param)         ----->  im2col, gemm, transpose          (convolution.py)

The packed weight takes the place of the plain one in `Model.params`; nothing is packed at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.codegen.templates import gemm
from graphc.ir import Model
from graphc.passes import convolution
from graphc.targets.target import Target

Prepare: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Gives a weight the form of a matrix [K, N]."""


def layout(model: Model, target: Target) -> Model:
    """A model whose products with float32 weights are packed GEMMs."""
    params = dict(model.params)
    mod = model.mod
    for name in model.signatures:
        packer = _Packer(mod, mod[name], params, target)
        mod = packer.run(name)
    statistics = {**model.statistics, "packed GEMMs": sum(1 for n in params if ".packed" in n)}
    return replace(model, mod=mod, params=params, statistics=statistics)


@relax.expr_functor.mutator
class _Packer(relax.PyExprMutator):  # type: ignore[misc]
    """Rewrites one function; weights that nobody reads any more are dropped at the end."""

    def __init__(
        self, mod: tvm.IRModule, function: Any, params: dict[str, np.ndarray], target: Target
    ) -> None:
        super().__init__(mod)
        self.function, self.params = function, params
        self.decisions = gemm.default_decisions(target)
        self.num_input = int(function.attrs["num_input"])
        self.weights = {p.name: p for p in function.params[self.num_input :]}
        self.packed: dict[str, Any] = {}
        self.widths: dict[str, int] = {}

    def run(self, name: str) -> tvm.IRModule:
        function = self.visit_expr(self.function)
        inputs = list(function.params)[: self.num_input]
        weights = [*self.weights.values(), *self.packed.values()]
        used = {v.name for v in relax.analysis.free_vars(function.body)}
        kept = [w for w in weights if w.name in used]
        for weight in weights:
            if weight.name not in used:
                self.params.pop(weight.name, None)
        function = relax.Function(
            [*inputs, *kept], function.body, function.ret_ty, function.is_pure, function.attrs
        )
        gvar = self.builder_.get().get_global_var(name)
        self.builder_.update_func(gvar, function)
        return self._mark_fusable(self.builder_.get())

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        rewrite = {
            "relax.matmul": self._matmul,
            "relax.nn.conv2d": self._convolution,
            "relax.nn.conv2d_transpose": self._transposed_convolution,
        }.get(getattr(call.op, "name", ""))
        if rewrite is None or not self._reads_weight(call):
            return call
        new = rewrite(call)
        return call if new is None else new

    def _reads_weight(self, call: relax.Call) -> bool:
        """The second operand is a float32 weight, and so is the data."""
        x, weight = call.args[0], call.args[1]
        if not isinstance(weight, relax.Var) or weight.name not in self.weights:
            return False
        return str(weight.ty.dtype) == str(x.ty.dtype) == "float32"

    def _matmul(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        if weight.ty.ndim != 2 or x.ty.ndim < 2:
            return None
        return self._gemm(x, weight, lambda value: value)

    def _convolution(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        channels, _, *kernel = (int(n) for n in weight.ty.shape)
        geometry = convolution.window(call, (kernel[0], kernel[1]))
        if geometry is None:
            return None
        batch, _, height, width = call.ty.shape
        patches = self._te(convolution.patches(geometry, height, width), x)
        product = self._gemm(patches, weight, convolution.forward_weight)
        product = relax.op.permute_dims(self._emit(product), [0, 2, 1])
        return relax.op.reshape(self._emit(product), [batch, channels, height, width])

    def _transposed_convolution(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        _, _, *kernel = (int(n) for n in weight.ty.shape)
        geometry = convolution.window(call, (kernel[0], kernel[1]))
        if geometry is None:
            return None
        batch, channels, rows, columns = x.ty.shape
        _, _, height, width = call.ty.shape
        flat = relax.op.reshape(x, [batch, channels, rows * columns])
        flat = relax.op.permute_dims(self._emit(flat), [0, 2, 1])
        product = self._gemm(self._emit(flat), weight, convolution.transposed_weight)
        image = self._te(
            convolution.overlaps(geometry, rows, columns, height, width), self._emit(product)
        )
        return relax.op.permute_dims(image, [0, 3, 1, 2])

    def _gemm(self, x: Any, weight: Any, prepare: Prepare) -> relax.Expr:
        packed, width = self._packed(weight, prepare)
        computation = gemm.compute(width, self.decisions.columns)
        return self.builder_.call_te(computation, x, packed, primfunc_name_hint="gemm")

    def _te(self, computation: Any, *operands: Any) -> Any:
        return self._emit(
            self.builder_.call_te(computation, *operands, primfunc_name_hint=computation.__name__)
        )

    def _emit(self, expr: Any) -> Any:
        return self.builder_.emit(expr)

    def _packed(self, weight: Any, prepare: Prepare) -> tuple[Any, int]:
        """The packed form of `prepare(weight)` [K, N] as a parameter, and N."""
        name = f"{weight.name}.packed{self.decisions.columns}"
        if name not in self.packed:
            matrix = prepare(self.params[weight.name])
            self.widths[name] = matrix.shape[1]
            value = gemm.pack(matrix, self.decisions.columns)
            self.params[name] = value
            self.packed[name] = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        return self.packed[name], self.widths[name]

    @staticmethod
    def _mark_fusable(mod: tvm.IRModule) -> tvm.IRModule:
        for gvar, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and gvar.name_hint.startswith("gemm"):
                mod[gvar] = function.with_attr("op_pattern", FUSABLE)
        return mod


# TVM's OpPatternKind kOutEWiseFusable: pointwise operators may be fused behind, nothing before.
FUSABLE = 4
