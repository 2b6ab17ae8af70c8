"""Words for thread-bound loops, beside those of codegen/builder.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from graphc.codegen import builder as tir

WORK_GROUP = 256
"""Threads of a work-group where nothing asks for another number; a device may allow fewer."""


_MOST_GROUPS = 1 << 15


def group(extent: Any, axis: str = "x") -> Any:
    """The loop over work-groups."""
    return T.thread_binding(tir.const(0), extent, thread=f"blockIdx.{axis}")


def thread(extent: int, axis: str = "x") -> Any:
    """The loop over the threads of a work-group."""
    return T.thread_binding(tir.const(0), tir.const(extent), thread=f"threadIdx.{axis}")


def shared(shape: Sequence[int], dtype: str = "float32") -> Any:
    """Memory that the threads of a work-group share; TVM puts barriers where they are needed."""
    return T.alloc_buffer([tir.const(n) for n in shape], dtype, scope="shared")


def private(shape: Sequence[int], dtype: str = "float32") -> Any:
    """Registers of one thread, when the indices are constant after unrolling."""
    return T.alloc_buffer([tir.const(n) for n in shape], dtype, scope="local")


def bind(value: Any) -> Any:
    """A scalar of one thread, computed once; indices in 32 bits, which are a device's own."""
    if str(value.ty) == "int64":
        return bind(value.astype("int32")).astype("int64")
    scalar = private([1], str(value.ty))
    tir.store(scalar, [tir.const(0)], value)
    return tir.load(scalar, [tir.const(0)])


@contextmanager
def each(extents: Sequence[Any], threads: int) -> Iterator[list[Any]]:
    """One thread for every element of a box; yields the element's indices."""
    total = tir.product(extents)
    blocks = (total + tir.const(threads - 1)) // tir.const(threads)
    # Devices take at least 65,535 work-groups along an axis; what is beyond goes along another.
    across = tirx.min(blocks, tir.const(_MOST_GROUPS))
    down = (blocks + tir.const(_MOST_GROUPS - 1)) // tir.const(_MOST_GROUPS)
    with group(down, "y") as row, group(across, "x") as block, thread(threads) as lane:
        index = (row * tir.const(_MOST_GROUPS) + block) * tir.const(threads) + lane
        with tir.when(index < total), tir.then():
            yield unflatten(index, extents)


def unflatten(index: Any, extents: Sequence[Any]) -> list[Any]:
    """The index along each dimension of a flat index into a box."""
    places = []
    for position, extent in enumerate(extents):
        inner = tir.product(extents[position + 1 :])
        place = index if tir.static(inner) == 1 else index // inner
        places.append(place if position == 0 else place % extent)
    return places
