"""Kernels that importers write as loops: what gathers, scatters or sorts has no TE compute.

def body(inputs, outputs): ...          written with TVM's IRBuilder, serial, in order
emit_loops(context, ["y"], [x], [("float32", (n, 4))], body, "top_k")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import relax, s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import variables
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.ir import Expr

_OPAQUE = 8
"""TVM's OpPatternKind kOpaque: a kernel that nothing is fused with."""

FALSE = tirx.const(False, "bool")

Body = Callable[[list[Any], list[Any]], None]


def emit_loops(
    context: Context,
    names: Sequence[str],
    args: Sequence[Value],
    outputs: Sequence[tuple[str, Sequence[Expr]]],
    body: Body,
    kernel: str,
    uses: Sequence[Expr] = (),
) -> list[TensorValue]:
    """Binds what a kernel makes; `outputs` are dtypes and shapes, `body` gets the buffers.

    `uses` are dimensions that the body reads and that no shape has.
    """
    shapes = [*(value.shape for value in args), *(shape for _, shape in outputs), uses]
    inputs = [
        tirx.decl_buffer([_index(e) for e in value.shape], value.dtype, name=f"x{index}")
        for index, value in enumerate(args)
    ]
    results = [
        tirx.decl_buffer([_index(e) for e in shape], dtype, name=f"y{index}")
        for index, (dtype, shape) in enumerate(outputs)
    ]
    bound = {e for value in args for e in value.shape if isinstance(e, tirx.Var)}
    free = [v for v in variables([e for shape in shapes for e in shape]) if v not in bound]
    with IRBuilder() as build, T.prim_func(s_tir=True):
        T.func_name(kernel)
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": _OPAQUE})
        for buffer in inputs:
            T.arg(buffer.name, buffer)
        for var in free:
            T.arg(var.name, var)
        for buffer in results:
            T.arg(buffer.name, buffer)
        body(inputs, results)
    function = s_tir.renew_defs(build.get())
    types = [relax.TensorType(tuple(shape), dtype) for dtype, shape in outputs]
    call = relax.call_tir(
        context.builder.add_func(function, kernel),
        [*(context.expr(value) for value in args), *free],
        types[0] if len(types) == 1 else types,
    )
    if len(types) == 1:
        return [context.emit(call, names[0], outputs[0][1])]
    both = context.builder.emit(call)
    return [
        context.emit(relax.TupleGetItem(both, index), name, outputs[index][1])
        for index, name in enumerate(names)
    ]


@contextmanager
def nest(extents: Sequence[Expr]) -> Iterator[list[Any]]:
    """Loops over an index space, in order."""
    with ExitStack() as stack:
        yield [stack.enter_context(T.serial(number(0), _index(extent))) for extent in extents]


def number(value: int) -> Any:
    """An int64 constant."""
    return tirx.IntImm("int64", value)


def cell(dtype: str, value: Any) -> Any:
    """A variable: a buffer of one element."""
    made = T.alloc_buffer([number(1)], dtype, scope="global")
    put(made, value)
    return made


def get(cell: Any) -> Any:
    """A variable's value."""
    return tirx.BufferLoad(cell, [number(0)])


def put(cell: Any, value: Any) -> None:
    """Sets a variable."""
    T.buffer_store(cell, value, [number(0)])


def load(buffer: Any, at: Sequence[Any]) -> Any:
    """buffer[at]; a scalar has no indices."""
    return tirx.BufferLoad(buffer, list(at))


def store(buffer: Any, at: Sequence[Any], value: Any) -> None:
    """buffer[at] = value"""
    T.buffer_store(buffer, value, list(at))


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """if condition:"""
    with T.If(condition), T.Then():
        yield


@contextmanager
def loop(condition: Any) -> Iterator[None]:
    """while condition:"""
    with T.While(condition):
        yield


def _index(extent: Expr) -> Any:
    return number(extent) if isinstance(extent, int) else extent
