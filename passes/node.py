"""A value in the light view of a Relax function that the passes work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax

from graphc.ir import Expr
from graphc.passes.shapes import dims_of

Arg: TypeAlias = "Node | tuple[Any, ...] | Any"
"""An argument of a call: a tensor, a tuple of tensors (concat, or a kernel's arguments, which may
end with dimensions), or anything else Relax allows."""


class Node:
    """A value: an input, a param (weight), a const, or the result of an operator.

    `op` is the operator's name without "relax." ("add", "nn.softmax"), "call" for a function of
    the module, or one of "input", "param", "const", "match_cast" and "tuple_get_item". `var`
    stands for the value in new expressions: `graph.emit(relax.op.add(a.var, b.var))`.
    """

    __slots__ = ("_shape", "args", "expr", "inputs", "name", "op", "order", "ty", "users", "var")

    def __init__(self, op: str, args: Sequence[Arg], expr: relax.Expr, name: str) -> None:
        self.op = op
        self.name = name
        self.expr = expr
        self.ty: Any = expr.ty
        self.var: Any = None
        self.order = (0, 0)
        self.users: dict[Node, None] = {}
        self.args: tuple[Arg, ...] = ()
        self.inputs: tuple[Node, ...] = ()
        self._shape: tuple[Expr, ...] | None = None
        self.set_args(args)

    def set_args(self, args: Sequence[Arg]) -> None:
        """Change what the value is computed from."""
        self.args = tuple(args)
        found: list[Node] = []
        for arg in self.args:
            if isinstance(arg, Node):
                found.append(arg)
            elif isinstance(arg, tuple):
                found.extend(field for field in arg if isinstance(field, Node))
        self.inputs = tuple(found)

    @property
    def attrs(self) -> tvm.ir.Attrs:
        """The attributes of the operator."""
        return self.expr.attrs

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Dimensions: ints, and expressions where symbolic."""
        if self._shape is None:
            assert isinstance(self.ty, relax.TensorType), f"{self.name} ({self.op}): {self.ty}"
            assert self.ty.shape is not None, f"{self.name} ({self.op}) has no known shape"
            self._shape = dims_of(self.ty.shape.values)
        return self._shape

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if no dimension is symbolic."""
        dims = tuple(dim for dim in self.shape if isinstance(dim, int))
        return dims if len(dims) == len(self.shape) else None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def is_tensor(self) -> bool:
        """Whether it is one tensor of known shape, not a tuple of several."""
        return isinstance(self.ty, relax.TensorType) and self.ty.shape is not None

    @property
    def dtype(self) -> str:
        """The element type."""
        return str(self.ty.dtype)

    @property
    def is_constant(self) -> bool:
        """Whether the value is known while compiling."""
        return self.op in ("param", "const")

    def __repr__(self) -> str:
        return f"{self.name} = {self.op}({', '.join(node.name for node in self.inputs)})"
