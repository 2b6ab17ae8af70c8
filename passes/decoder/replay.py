"""Emits the nodes of a graph again: with other dimensions, from other inputs, in a new function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tvm
from tvm import relax, sym, tirx

from graphc.codegen.rewrite import rewrite
from graphc.ir import Expr
from graphc.passes.node import Node

Values: TypeAlias = "dict[Node, Any]"
"""What stands for a node of the old graph in the new function."""

Rule: TypeAlias = Callable[["Replay", Node], "Any | None"]
"""The new value of a node, or None: to be emitted as it is."""


class Replay:
    """One way of reading dimensions: `dims` says what stands for a variable of the old graph."""

    def __init__(self, builder: relax.BlockBuilder, dims: Mapping[tirx.Var, Expr]) -> None:
        self.builder = builder
        self.dims = {var: _expression(value) for var, value in dims.items()}
        self.values: Values = {}
        self._analyzer = sym.Analyzer()

    def run(self, nodes: Sequence[Node], rules: Sequence[Rule] = ()) -> None:
        """Emit nodes in order, each after its inputs; a rule may answer for one."""
        for node in nodes:
            if node in self.values:
                continue
            for rule in rules:
                value = rule(self, node)
                if value is not None:
                    self.values[node] = value
                    break
            else:
                self.values[node] = self.again(node)

    def again(self, node: Node) -> Any:
        """The node itself over the new values of its inputs."""
        if node.op in ("param", "const"):
            return node.var
        assert node.op != "input", f"nothing stands for the input {node.name}"
        if node.op == "match_cast":
            source = self.values[node.inputs[0]]
            return self.builder.match_cast(source, self.type(node.ty))
        if node.op == "tuple_get_item":
            return self.emit(relax.TupleGetItem(self.values[node.inputs[0]], node.expr.index))
        args = [self._argument(arg) for arg in node.args]
        if node.op == "concat":
            args = [relax.Tuple(_solid(args[0], node))]
        types = [self.type(ty) for ty in node.expr.ty_args]
        return self.emit(tvm.ir.Call(node.expr.op, args, node.expr.attrs, types), node.name)

    def emit(self, expr: Any, name: str = "") -> Any:
        """A variable bound to the expression."""
        return self.builder.emit(expr, name_hint=name)

    def dim(self, value: Expr) -> Any:
        """A dimension or number of the old graph in the new one."""
        if isinstance(value, int):
            return value
        new = rewrite(value, lambda e: self.dims.get(e) if isinstance(e, tirx.Var) else None)
        new = self._analyzer.simplify(new)
        return int(new.value) if isinstance(new, tirx.IntImm) else new

    def shape(self, node: Node) -> list[Any]:
        """The shape that the node has in the new function."""
        return [self.dim(extent) for extent in node.shape]

    def type(self, ty: Any) -> Any:
        """A type of the old graph in the new one."""
        if isinstance(ty, relax.TupleType):
            return relax.TupleType([self.type(field) for field in ty.fields])
        if isinstance(ty, relax.TensorType) and ty.shape is not None:
            return relax.TensorType([self._prim(d) for d in ty.shape.values], str(ty.dtype))
        return ty

    def _prim(self, value: Any) -> Any:
        return _expression(self.dim(value))

    def _argument(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            return self.values[arg]
        if isinstance(arg, tuple):
            return relax.Tuple([self._argument(field) for field in arg])
        if isinstance(arg, relax.ShapeExpr):
            return relax.ShapeExpr([self._prim(value) for value in arg.values])
        if isinstance(arg, relax.Tuple):
            return relax.Tuple([self._argument(field) for field in arg.fields])
        if isinstance(arg.ty, tvm.ir.PrimType) and str(arg.ty).startswith("int"):
            return self._prim(arg)
        return arg


def _solid(fields: relax.Tuple, node: Node) -> list[Any]:
    """The operands of a concatenation without those that hold nothing."""
    axis = 0 if node.attrs.axis is None else int(node.attrs.axis)
    kept = [
        field
        for field in fields
        if not (isinstance(field.ty.shape[axis], tirx.IntImm) and int(field.ty.shape[axis]) == 0)
    ]
    return kept or list(fields)


def _expression(value: Any) -> Any:
    return tirx.IntImm("int64", value) if isinstance(value, int) else value
