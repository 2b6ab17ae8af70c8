"""How a kernel uses an instruction that TVM has no word for: as a function in LLVM text.

    define linkonce_odr <16 x i32> @name(...) alwaysinline { ... }

The text is linked into the module of every kernel that asks for it (pragma_import_llvm), LLVM
merges equal copies and inlines the calls, so that an instruction costs what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T


@dataclass(frozen=True)
class Instruction:
    """A function `name` in LLVM `text` whose result has TVM's type `result`, such as int32x16."""

    name: str
    result: str
    text: str

    def __call__(self, *operands: Any) -> Any:
        """The expression that is the instruction's result."""
        return tirx.call_pure_extern(self.result, self.name, *operands)


@contextmanager
def imported(instructions: Sequence[Instruction]) -> Iterator[None]:
    """A scope of a kernel under construction in which the instructions may be called."""
    if not instructions:
        yield
        return
    first, *rest = instructions
    scope = T.attr(tirx.IntImm("int32", 0), "pragma_import_llvm", first.text)
    with scope, imported(rest):
        yield


def vector(buffer: Any, start: Sequence[Any], lanes: int) -> Any:
    """`lanes` elements of a buffer from `start` on, as one value."""
    *outer, last = start
    ramp = tirx.Ramp(last, tirx.IntImm("int64", 1), tirx.IntImm("int32", lanes))
    return tirx.BufferLoad(buffer, [*outer, ramp])


def store_vector(buffer: Any, start: Sequence[Any], lanes: int, value: Any) -> None:
    """buffer[start : start + lanes] = value"""
    *outer, last = start
    ramp = tirx.Ramp(last, tirx.IntImm("int64", 1), tirx.IntImm("int32", lanes))
    T.buffer_store(buffer, value, [*outer, ramp])
