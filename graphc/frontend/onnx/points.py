"""Emits points: dimensions measured in mid-run, branches and loops that are decided then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import ir, relax
from tvm.relax import op

from graphc.frontend.onnx.extents import variables
from graphc.frontend.onnx.regions import FLOW, BindPoint, Point, Region
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

if TYPE_CHECKING:
    from graphc.frontend.onnx.context import Context

_TYPES = (relax.TensorType, relax.TupleType, relax.ShapeType)


def measure(
    context: Context,
    value: Value,
    names: Sequence[str],
    bounds: Sequence[tuple[int, int | None]],
    where: str,
) -> list[Expr]:
    """Dimensions that take the elements of an int64 vector when it is computed.

    An element outside its bounds, both included, is an error in the inputs.
    """  # fmt: skip
    vector = context.reshape(value, (len(names),), f"{where}.sizes")
    vector = bound(context, vector)
    assert vector.dtype == "int64", vector
    dims = [
        context.symbols.fresh(name, low, high)
        for name, (low, high) in zip(names, bounds, strict=True)
    ]
    emit_point(context, BindPoint(tuple(dims), where), [vector.var], [])
    return [*dims]


def bound(context: Context, value: Value) -> TensorValue:
    """The value as a variable of the dataflow, which a constant or a weight is not."""
    tensor = context.tensor(value)
    if isinstance(tensor.var, relax.Var) and tensor.var not in set(context.param_vars):
        return tensor
    var = context.builder.emit(tensor.var, tensor.name or "value")
    return TensorValue(tensor.name, tensor.dtype, tensor.shape, var, tensor.interval)


def emit_point(
    context: Context,
    point: Point,
    args: Sequence[relax.Expr],
    outputs: Sequence[tuple[str, str, Sequence[Expr]]],
) -> list[TensorValue]:
    """Binds a point; `outputs` are names, dtypes and shapes of what it gives."""
    number = len(context.points)
    context.points.append(point)
    types = [relax.TensorType(tuple(shape), dtype) for _, dtype, shape in outputs]
    call = op.call_pure_packed(
        FLOW, ir.StringImm(str(number)), *args, ty_args=relax.TupleType(types)
    )
    both = context.builder.emit(call)
    return [
        context.emit(relax.TupleGetItem(both, index), name, tuple(shape))
        for index, (name, _, shape) in enumerate(outputs)
    ]


def captured(context: Context, regions: Iterable[Region]) -> list[relax.Var]:
    """Variables that regions read and do not make, but for weights."""
    found: dict[relax.Var, None] = {}
    weights = set(context.param_vars)
    for region in regions:
        own = {*region.params, *(binding.var for binding in region.bindings)}
        used = [v for binding in region.bindings for v in reads(binding.value)[0]]
        for var in (*used, *region.results):
            if var not in own and var not in weights:
                found.setdefault(var)
    return list(found)


def reads(value: Any) -> tuple[list[relax.Var], set[str]]:
    """The Relax variables and the names of the dimensions that an expression reads."""
    found: dict[Any, None] = {}
    tvm_ffi.structural_walk(value, (ir.Var, found.setdefault), order="post")
    tensors = [var for var in found if isinstance(var.ty, _TYPES)]
    dims = {var.name for var in found if not isinstance(var.ty, _TYPES)}
    return tensors, dims.union(*(dims_of_type(var.ty) for var in tensors))


def dims_of_type(ty: Any) -> set[str]:
    """The names of the dimensions in the shapes of a type."""
    if isinstance(ty, relax.TupleType):
        return set[str]().union(*map(dims_of_type, ty.fields))
    if isinstance(ty, relax.TensorType) and ty.shape is not None:
        return {var.name for var in variables(list(ty.shape))}
    return set()
