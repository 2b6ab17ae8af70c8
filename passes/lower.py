"""Relax operators -> calls of TIR functions, fused, in a straight line.

    composite calls   ----->  the first operator template that accepts them, else their body inlined
    other operators   ----->  TVM's legalisation to TE, then FuseOps / FuseTIR around it

Reshapes stay reshapes: the planner makes them views. After this every binding is a `call_tir`, a
reshape, a match_cast or an index check.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import GenericConst, GlobalVar

from graphc.codegen.templates import lookup
from graphc.ir import Model, Weights
from graphc.passes.inline import inline, is_composite
from graphc.passes.merge_kernels import merge_kernels
from graphc.passes.share_scalars import share_scalars
from graphc.targets.target import Target

OPAQUE = 8  # TVM's OpPatternKind kOpaque: a kernel that nothing is fused with

_HALVES = ("float16", "bfloat16")

# Operators that only change the shape: one of them (reshape) is left for the planner.
_RESHAPES = {"relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.reshape"}


def lower(model: Model, target: Target) -> Model:
    """The model as TIR kernels and the calls of them."""
    mod, params = model.mod, Weights(model.params)
    for name in model.signatures:
        mod, shared = share_scalars(mod, name, params)
        params = params.but(shared)
    mod = _LowerOperators(mod, target).run()
    passes = [
        relax.transform.LegalizeOps(
            customize_legalize_map={
                "relax.take": _take,
                "relax.max": lambda builder, call: _extreme(builder, call, tirx.max, "min"),
                "relax.min": lambda builder, call: _extreme(builder, call, tirx.min, "max"),
            },
            skip_ops=["relax.reshape"],
            enable_warning=False,
        ),
        relax.transform.DeadCodeElimination(list(model.signatures)),
        _merge_kernels,  # FuseOps names a kernel after what it fuses
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(fuse_opt_level=2),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(list(model.signatures)),
        _merge_kernels,
    ]
    with tvm.target.Target(target.tvm_dict()):
        mod = tvm.transform.Sequential(passes)(mod)
    for name in model.signatures:
        lift = _LiftConstants(mod, params)
        mod = lift.run(name)
        params = params.but(lift.values)
    return replace(model, mod=mod, params=params)


@tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _merge_kernels(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
    return merge_kernels(mod)


def _take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """table[..., indices, ...]: indices were checked before, so that nothing is clamped here."""
    table, indices = call.args
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % table.ty.ndim

    def take(table: te.Tensor, indices: te.Tensor) -> te.Tensor:
        rank = len(indices.shape)
        shape = [*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :]]

        def element(*at: Any) -> Any:
            place = indices(*at[axis : axis + rank])
            return table(*at[:axis], place, *at[axis + rank :])

        return te.compute(shape, element, name="take")

    return builder.call_te(take, table, indices, primfunc_name_hint="take")


def _extreme(builder: relax.BlockBuilder, call: relax.Call, combine: Any, end: str) -> relax.Expr:
    """max or min from the true end of the range: TVM starts floats from the largest finite one."""
    (x,) = call.args
    rank = x.ty.ndim
    axes = range(rank) if call.attrs.axis is None else [int(a) % rank for a in call.attrs.axis]
    reduced, keep = sorted(set(axes)), bool(call.attrs.keepdims)

    def first(dtype: str) -> Any:
        if dtype.startswith(("float", "bfloat")):
            return tirx.const(float("-inf" if end == "min" else "inf"), dtype)
        return tirx.min_value(dtype) if end == "min" else tirx.max_value(dtype)

    def extreme(x: te.Tensor) -> te.Tensor:
        along = {axis: te.reduce_axis((0, x.shape[axis]), name=f"k{axis}") for axis in reduced}
        reducer = te.comm_reducer(lambda a, b: combine(a, b), first, name="extreme")

        def element(*at: Any) -> Any:
            rest = iter(at if not keep else [i for a, i in enumerate(at) if a not in along])
            places = [along[a] if a in along else next(rest) for a in range(rank)]
            return reducer(x(*places), axis=list(along.values()))

        return te.compute(list(call.ty.shape), element, name=call.op.name.rpartition(".")[2])

    return builder.call_te(extreme, x, primfunc_name_hint=call.op.name.rpartition(".")[2])


@relax.expr_functor.mutator
class _LiftConstants(relax.PyExprMutator):  # type: ignore[misc]
    """Makes a weight of every constant that a kernel still takes as an argument."""

    def __init__(self, mod: tvm.IRModule, params: Weights) -> None:
        super().__init__(mod)
        self.mod, self.params = mod, params
        self.lifted: dict[bytes, relax.Var] = {}
        self.values: dict[str, np.ndarray] = {}

    def run(self, name: str) -> tvm.IRModule:
        gvar = self.mod.get_global_var(name)
        function = self.visit_expr(self.mod[gvar])
        params = [*function.params, *self.lifted.values()]
        function = relax.Function(
            params, function.body, function.ret_ty, function.is_pure, function.attrs
        )
        self.builder_.update_func(gvar, function)
        return self.builder_.get()

    def visit_generic_const_(self, constant: GenericConst) -> relax.Expr:
        value = np.asarray(constant.value.numpy())
        key = str((value.dtype, value.shape)).encode() + value.tobytes()
        if key not in self.lifted:
            name = f"constant{len(self.lifted)}"
            while name in self.params:
                name += "_"
            self.values[name] = value
            self.lifted[key] = relax.Var(name, constant.ty)
        return self.lifted[key]


@relax.expr_functor.mutator
class _LowerOperators(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces what an operator template accepts, inlines the other composites."""

    def __init__(self, mod: tvm.IRModule, target: Target) -> None:
        super().__init__(mod)
        self.mod, self.target = mod, target
        self.kernels: dict[tuple[str, ...], GlobalVar] = {}

    def run(self) -> tvm.IRModule:
        for gvar, function in self.mod.functions.items():
            if isinstance(function, relax.Function) and not is_composite(function):
                self.builder_.update_func(gvar, self.visit_expr(function))
        return self.builder_.get()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        callee = call.op
        if isinstance(callee, GlobalVar):
            callee = self.mod[callee]
            if not (isinstance(callee, relax.Function) and is_composite(callee)):
                return call
            name, attrs = str(callee.attrs["Composite"]), callee.attrs
        else:
            name, attrs = getattr(callee, "name", ""), call.attrs
        if name in _RESHAPES:
            return relax.op.reshape(call.args[0], call.ty.shape)
        kernel = lookup(name, list(call.args), attrs, call.ty, self.target)
        if kernel is not None:
            # TVM does not see that two are equal when an attribute has dimensions in it.
            key = (name, str(attrs), str(call.ty), *(str(a.ty) for a in call.args))
            if key not in self.kernels:
                function = kernel.with_attr("op_pattern", OPAQUE)
                self.kernels[key] = self.builder_.add_func(function, name.rpartition(".")[2])
            gvar = self.kernels[key]
            results = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else call.ty
            return relax.call_tir(gvar, [a for a in call.args if _is_tensor(a)], results)
        if isinstance(callee, relax.Function):
            return inline(self, callee, call)
        if name == "relax.matmul" and str(call.ty.dtype) in _HALVES:
            # Half precision is summed in float32: a long row would lose its last terms.
            wide = self.builder_.emit(relax.op.matmul(*call.args, out_dtype="float32"))
            return relax.op.astype(wide, str(call.ty.dtype))
        return call


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument.ty, relax.TensorType)
