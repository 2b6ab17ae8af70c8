"""Packs weights for the kernel templates that will read them.

    matmul(x, w: param [K, N])  ----->  gemm(x, packed w: param [panels, K, columns])
    conv2d(x, w: param)         ----->  im2col, gemm, transpose          (convolution.py)

The packed weight takes the place of the plain one in `Model.params`; nothing is packed at run time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.codegen.templates import gemm
from graphc.ir import Model, Weights
from graphc.passes import convolution
from graphc.targets.target import Target
from graphc.weights_file import release


@dataclass(frozen=True)
class Matrix:
    """How a weight is seen as a matrix [depth, width]: `of(weight)`."""

    depth: int
    width: int
    of: Callable[[np.ndarray], np.ndarray]


def plain(weight: np.ndarray) -> np.ndarray:
    """A weight that is a matrix [depth, width] as it is."""
    return weight


def layout(model: Model, target: Target) -> Model:
    """A model whose products with float32 weights are packed GEMMs."""
    params = Weights(model.params)
    mod, packed = model.mod, 0
    for name in model.signatures:
        packer = _Packer(mod, mod[name], params, target)
        mod = packer.run(name)
        params = params.but(packer.values, packer.dropped)
        packed += len(packer.values)
    statistics = {**model.statistics, "packed weights": packed}
    return replace(model, mod=mod, params=params, statistics=statistics)


def _packed_value(
    params: Weights, name: str, of: Callable[[np.ndarray], np.ndarray], columns: int
) -> np.ndarray:
    value = params[name]
    packed = gemm.pack(of(value), columns)
    release(value)
    return packed


@relax.expr_functor.mutator
class _Packer(relax.PyExprMutator):  # type: ignore[misc]
    """Rewrites one function; weights that nobody reads any more are dropped at the end."""

    def __init__(self, mod: tvm.IRModule, function: Any, params: Weights, target: Target) -> None:
        super().__init__(mod)
        self.function, self.params = function, params
        self.decisions = gemm.default_decisions(target)
        self.num_input = int(function.attrs["num_input"])
        self.weights = {p.name: p for p in function.params[self.num_input :]}
        self.packed: dict[str, Any] = {}
        self.values: dict[str, Callable[[], np.ndarray]] = {}
        self.dropped: set[str] = set()

    def run(self, name: str) -> tvm.IRModule:
        function = self.visit_expr(self.function)
        inputs = list(function.params)[: self.num_input]
        weights = [*self.weights.values(), *self.packed.values()]
        used = {v.name for v in relax.analysis.free_vars(function.body)}
        kept = [w for w in weights if w.name in used]
        self.dropped = {w.name for w in weights} - used
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
        depth, width = (int(n) for n in weight.ty.shape)
        return self._gemm(x, weight, Matrix(depth, width, plain))

    def _convolution(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        channels, inner, *kernel = (int(n) for n in weight.ty.shape)
        geometry = convolution.window(call, (kernel[0], kernel[1]))
        if geometry is None:
            return None
        batch, _, height, width = call.ty.shape
        patches = self._te(convolution.patches(geometry, height, width), x)
        matrix = Matrix(inner * math.prod(kernel), channels, convolution.forward_weight)
        product = self._gemm(patches, weight, matrix)
        product = relax.op.permute_dims(self._emit(product), [0, 2, 1])
        return relax.op.reshape(self._emit(product), [batch, channels, height, width])

    def _transposed_convolution(self, call: relax.Call) -> relax.Expr | None:
        x, weight = call.args
        inner, outer, *kernel = (int(n) for n in weight.ty.shape)
        geometry = convolution.window(call, (kernel[0], kernel[1]))
        if geometry is None:
            return None
        batch, channels, rows, columns = x.ty.shape
        _, _, height, width = call.ty.shape
        flat = relax.op.reshape(x, [batch, channels, rows * columns])
        flat = relax.op.permute_dims(self._emit(flat), [0, 2, 1])
        matrix = Matrix(inner, outer * math.prod(kernel), convolution.transposed_weight)
        product = self._gemm(self._emit(flat), weight, matrix)
        image = self._te(
            convolution.overlaps(geometry, rows, columns, height, width), self._emit(product)
        )
        return relax.op.permute_dims(image, [0, 3, 1, 2])

    def _gemm(self, x: Any, weight: Any, matrix: Matrix) -> relax.Expr:
        packed = self._packed(weight, matrix)
        computation = gemm.compute(matrix.width, self.decisions.columns)
        return self.builder_.call_te(computation, x, packed, primfunc_name_hint="gemm")

    def _te(self, computation: Any, *operands: Any) -> Any:
        return self._emit(
            self.builder_.call_te(computation, *operands, primfunc_name_hint=computation.__name__)
        )

    def _emit(self, expr: Any) -> Any:
        return self.builder_.emit(expr)

    def _packed(self, weight: Any, matrix: Matrix) -> Any:
        """The packed form of a weight as a parameter; its value is made when it is read."""
        columns = self.decisions.columns
        form = "" if matrix.of is plain else f".{matrix.of.__name__}"
        name = f"{weight.name}{form}.packed{columns}"
        if name not in self.packed:
            shape = gemm.packed_shape(matrix.depth, matrix.width, columns)
            self.packed[name] = relax.Var(name, relax.TensorType(shape, str(weight.ty.dtype)))
            self.values[name] = functools.partial(
                _packed_value, self.params, weight.name, matrix.of, columns
            )
        return self.packed[name]

    @staticmethod
    def _mark_fusable(mod: tvm.IRModule) -> tvm.IRModule:
        for gvar, function in mod.functions.items():
            if isinstance(function, tirx.PrimFunc) and gvar.name_hint.startswith("gemm"):
                mod[gvar] = function.with_attr("op_pattern", FUSABLE)
        return mod


# TVM's OpPatternKind kOutEWiseFusable: pointwise operators may be fused behind, nothing before.
FUSABLE = 4
