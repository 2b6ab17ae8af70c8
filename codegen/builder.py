"""Small words for writing TIR loops in templates, over TVM's IRBuilder.

A template reads like the loops that it makes:

    with tir.function(name, params) as build:
        with tir.parallel(rows) as row:
            with tir.vector(lanes) as lane:
                tir.store(out, [row, lane], tir.load(x, [row, lane]) + one)
    return build.get()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import sym, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm_ffi import structural_equal

from graphc.codegen.math import vectorisable

# Below this many elements the cost of waking a thread exceeds the work.
SERIAL_ELEMENTS = 1 << 13

# A line of the cache holds so many floats on every device so far.
LINE_FLOATS = 16


def const(value: int) -> Any:
    """An int64 constant: every index in generated code is int64."""
    return tirx.IntImm("int64", value)


def f32(value: float) -> Any:
    """A float32 constant."""
    return tirx.FloatImm("float32", value)


def at_least(value: Any, low: int) -> Any:
    """max(value, low)"""
    return tirx.max(value, const(low))


def product(values: Sequence[Any]) -> Any:
    """The product of dimensions, an int64 expression."""
    result: Any = const(1)
    for value in values:
        result = result * value
    return simplify(result)


def simplify(expr: Any) -> Any:
    """`expr` in TVM's canonical form."""
    return sym.Analyzer().simplify(expr)


def static(expr: Any) -> int | None:
    """The value of a constant expression, None when it is symbolic."""
    if isinstance(expr, int):
        return expr
    expr = simplify(expr)
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


@contextmanager
def function(
    name: str, params: Sequence[Any], template: str, flops: Any | None = None
) -> Iterator[IRBuilder]:
    """Opens a PrimFunc over existing parameters; `.get()` of what it yields is the function.

    `flops` is how many additions and multiplications it takes, over its parameters' dimensions.
    """
    attributes = {"tirx.noalias": True, "tirx.is_scheduled": True, "graphc.template": template}
    if flops is not None:
        attributes["graphc.flops"] = flops
    with IRBuilder() as build, T.prim_func(s_tir=True):
        T.func_name(name)
        T.func_attr(attributes)
        for param in params:
            T.arg(param.name, param)
        yield build


def serial(extent: Any) -> Any:
    """for i in 0 .. extent"""
    return T.serial(const(0), _index(extent))


def unroll(extent: int) -> Any:
    """A loop that is written out."""
    return T.unroll(const(0), const(extent))


def parallel(extent: Any) -> Any:
    """A loop whose iterations are divided among the threads."""
    return T.parallel(const(0), _index(extent))


def vector(lanes: int) -> Any:
    """A loop that becomes vector instructions."""
    return T.vectorized(const(0), const(lanes))


def bind(value: Any) -> Any:
    """Names a scalar value, for use inside the loop in which it is bound.

    It is a local buffer of one element, not a let: TVM's simplifier writes lets out wherever they
    are used, and index expressions grow until lowering takes minutes. LLVM keeps it in a register.
    """
    scalar = local([1], str(value.ty))
    T.buffer_store(scalar, vectorisable(value), [const(0)])
    return tirx.BufferLoad(scalar, [const(0)])


def let(value: Any) -> Any:
    """Names a scalar value outside a parallel loop, where a local buffer could not be seen."""
    return T.bind(value)


def when(condition: Any) -> Any:
    """if condition: used as `with when(c), then(): ...`"""
    return T.If(condition)


def then() -> Any:
    """The branch taken."""
    return T.Then()


def otherwise() -> Any:
    """The branch not taken."""
    return T.Else()


def local(shape: Sequence[int], dtype: str = "float32") -> Any:
    """A small buffer on the stack, in registers when its indices are constant.

    TVM puts a buffer of scope "local", or of more than 1 KiB, into the workspace instead: larger
    register blocks are a list of buffers, one for each row (`tile`).
    """
    return T.alloc_buffer([const(n) for n in shape], dtype, scope="global")


def tile(rows: int, columns: int) -> list[Any]:
    """Accumulators: one local buffer of `columns` floats for each row."""
    return [local([columns]) for _ in range(rows)]


def over_tile(rows: int, vectors: int, lanes: int) -> Iterator[tuple[int, Any]]:
    """Loops over a tile, rows and vectors written out: yields (row, column)."""
    for i in range(rows):
        for v in range(vectors):
            with vector(lanes) as lane:
                yield i, const(v * lanes) + lane


def workspace(shape: Sequence[Any], dtype: str = "float32") -> Any:
    """A buffer of the thread's workspace, for sizes known only at run time."""
    return T.alloc_buffer([_index(n) for n in shape], dtype, scope="global")


def view(buffer: Any, shape: Sequence[Any], dtype: str | None = None) -> Any:
    """The same memory under another shape, and perhaps as elements of another type."""
    return T.decl_buffer([_index(n) for n in shape], dtype or buffer.dtype, data=buffer.data)


def view_as(buffer: Any, dtype: str, shape: Sequence[Any]) -> Any:
    """The same memory as elements of another type."""
    return T.decl_buffer([_index(n) for n in shape], dtype, data=buffer.data)


def load(buffer: Any, indices: Sequence[Any]) -> Any:
    """buffer[indices]"""
    return tirx.BufferLoad(buffer, list(indices))


def store(buffer: Any, indices: Sequence[Any], value: Any) -> None:
    """buffer[indices] = value, elementary functions written out as polynomials"""
    T.buffer_store(buffer, vectorisable(value), list(indices))


def prefetch(buffer: Any, indices: Sequence[Any], level: int = 1) -> None:
    """Asks for the line of buffer[indices] in the cache of that level; any address is allowed."""
    address = tirx.address_of(tirx.BufferLoad(buffer, list(indices)))
    read, locality, data = (tirx.const(n, "int32") for n in (0, 4 - level, 1))
    T.evaluate(tirx.call_intrin("void", "tirx.prefetch", address, read, locality, data))


def fresh_buffers(types: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """Parameters for a kernel over values of these types.

    Every different symbolic dimension, also one like batch * 12, becomes a variable of its own,
    which the kernel reads from the shape of its arguments.
    """
    seen: list[tuple[Any, Any]] = []

    def dimension(expr: Any) -> Any:
        if isinstance(expr, tirx.IntImm):
            return const(int(expr.value))
        for known, variable in seen:
            if structural_equal(known, expr):
                return variable
        variable = tirx.Var(f"n{len(seen)}", "int64")
        seen.append((expr, variable))
        return variable

    return [
        tirx.decl_buffer([dimension(n) for n in ty.shape], str(ty.dtype), name=name)
        for ty, name in zip(types, names, strict=True)
    ]


def row(extent: Any, width: int, body: Callable[[Any, int], None]) -> None:
    """`body(start, width)` along a row: full vectors, then what is left, narrower or one by one."""
    count = static(extent)
    if count is not None:
        lanes_over(count, width, body)
        return
    full = bind(extent // const(width))
    with serial(full) as chunk:
        body(chunk * const(width), width)
    done = full * const(width)
    with serial(extent - done) as rest:
        body(done + rest, 1)


def fill(buffer: Any, lanes: int, value: Any) -> None:
    """buffer[0:lanes] = value"""
    with vector(lanes) as lane:
        store(buffer, [lane], value)


def horizontal(buffer: Any, lanes: int, combine: Callable[[Any, Any], Any]) -> Any:
    """Joins the lanes of a local vector by halving it, in place; returns the scalar."""
    while lanes > 1:
        lanes //= 2
        with vector(lanes) as lane:
            joined = combine(load(buffer, [lane]), load(buffer, [lane + const(lanes)]))
            store(buffer, [lane], joined)
    return load(buffer, [const(0)])


@contextmanager
def rows_in_parallel(rows: Any, work: Any) -> Iterator[Any]:
    """parallel(rows); serial when `work` elements are too few to wake threads for."""
    count = static(work)
    loop = serial if count is not None and count < SERIAL_ELEMENTS else parallel
    with loop(rows) as index:
        yield index


def lanes_over(extent: int, lanes: int, body: Callable[[Any, int], None]) -> None:
    """Calls `body(start, width)` for vectors that cover a static extent: full ones, then halves.

    A remainder of 13 under 8 lanes becomes vectors of 8, 4 and 1.
    """
    full = extent // lanes
    if full == 1:
        body(const(0), lanes)
    elif full > 1:
        with serial(full) as i:
            body(i * const(lanes), lanes)
    start, width = full * lanes, lanes
    while start < extent:
        width //= 2
        if extent - start >= width:
            body(const(start), width)
            start += width


def _index(value: Any) -> Any:
    return const(value) if isinstance(value, int) else value
