"""A light, mutable view of one Relax function: read once, rewritten by a pass, built once.

Nodes know their inputs and users, so a pattern walks from a value to what it is made of without
asking TVM, and a rewrite is `graph.replace(old, new)`. Nothing outside a pass ever sees a Graph:
passes take and return a Model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from graphc.ir import Model, QuantizedWeight, Source, Weights
from graphc.passes.node import Arg, Node
from graphc.passes.shapes import Shapes

SMALL = 16
"""Arrays of at most so many elements are written into the graph instead of into the weights."""


class Graph:
    """The dataflow of one function of a Model, and the values of the weights that it reads."""

    def __init__(self, model: Model, function: str = "main") -> None:
        self.name = function
        self.model = model
        self.params = Weights(model.params)
        self.quantized: dict[str, QuantizedWeight] = dict(model.quantized)
        self.outputs: list[Node] = []
        self._function = model.mod[function]
        self._functions: dict[Any, Any] = {}
        self._builder = relax.BlockBuilder()
        self._nodes: dict[Any, Node] = {}
        self._leaves: list[Node] = []
        self._names = dict.fromkeys(model.params, 0)
        self._anchor = 0
        self._serial = 0
        self._read()
        self._mark = self._serial
        self.shapes = Shapes(
            model.signatures[function].dims, relax.analysis.defined_symbolic_vars(self._function)
        )

    # Reading

    def _read(self) -> None:
        count = int(self._function.attrs["num_input"])
        for number, var in enumerate(self._function.params):
            self._leaves.append(self._add("input" if number < count else "param", (), var, var))
        tuples: dict[Any, Any] = {}
        body = self._function.body
        assert len(body.blocks) <= 1, "a function is one dataflow block"
        for number, binding in enumerate((b for block in body.blocks for b in block.bindings), 1):
            self._anchor = number
            var, value = binding.var, binding.value
            if isinstance(binding, relax.MatchCast):
                self._add("match_cast", (self._node(value),), var, var)
            elif isinstance(value, relax.Tuple):
                tuples[var] = value
            elif isinstance(value, (tvm.ir.Call, relax.TupleGetItem)):
                self._call(value, var)
            else:
                self._nodes[var] = self._node(value)
        self._anchor += 1
        result = tuples.get(body.body, body.body)
        assert isinstance(result, relax.Tuple), f"{self.name} returns {type(result)}, not a tuple"
        self.outputs = [self._node(field) for field in result.fields]
        self._drop_dead()

    def _drop_dead(self) -> None:
        live = set(self.nodes())
        for node in self._nodes.values():
            node.users = dict.fromkeys(user for user in node.users if user in live)

    def _node(self, expr: relax.Expr) -> Node:
        if isinstance(expr, relax.Var):
            return self._nodes[expr]
        if isinstance(expr, tvm.ir.GenericConst):
            return self._add("const", (), expr, expr)
        return self._call(expr, None)

    def _call(self, value: relax.Expr, var: relax.Var | None) -> Node:
        args: list[Arg]
        if isinstance(value, relax.TupleGetItem):
            source = self._node(value.tuple_value)
            op, args = "tuple_get_item", [source]
            value = _retyped(value, source)
        else:
            args = [self._arg(arg) for arg in value.args]
            is_operator = isinstance(value.op, tvm.ir.Op)
            op = value.op.name.removeprefix("relax.") if is_operator else "call"
            if value.ty.is_missing():
                value = self._builder.normalize(_rebuilt(value, args, value.ty))
        return self._add(op, args, value, var)

    def _arg(self, arg: relax.Expr) -> Arg:
        if isinstance(arg, relax.Tuple):
            # A kernel's arguments may end with dimensions, which are no nodes.
            if any(_is_value(field) for field in arg.fields):
                return tuple(self._node(f) if _is_value(f) else f for f in arg.fields)
            return arg
        return self._node(arg) if _is_value(arg) else arg

    def _add(self, op: str, args: Sequence[Arg], expr: relax.Expr, var: relax.Expr | None) -> Node:
        name = var.name if isinstance(var, relax.Var) else op.rpartition(".")[2]
        node = Node(op, args, expr, name)
        self._serial += 1
        node.order = (self._anchor, self._serial)
        node.var = relax.DataflowVar(name, node.ty) if var is None else var
        if op != "const":
            self._nodes[node.var] = node
        for source in node.inputs:
            source.users[node] = None
        return node

    # Walking

    def nodes(self) -> list[Node]:
        """Every live node, in the order of the function."""
        seen: set[Node] = set()
        stack = list(self.outputs)
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack.extend(node.inputs)
        return sorted(seen, key=lambda node: node.order)

    def walk(self) -> Iterator[Node]:
        """Every node that computes something and is live when its turn comes; new nodes are
        placed where the walk stands."""
        for node in self.nodes():
            if node.inputs or node.op not in ("input", "param", "const"):
                if not node.users and node not in self.outputs:
                    continue
                self.at(node)
                yield node

    def at(self, node: Node) -> None:
        """Place what is emitted from now on beside `node`, whose value it is going to replace."""
        self._anchor = node.order[0]
        self._mark = self._serial

    def used_once(self, node: Node) -> bool:
        """Whether one operator alone uses the value, so that fusing it repeats no work."""
        return len(node.users) == 1 and node not in self.outputs

    def functions(self) -> dict[Any, Any]:
        """The functions that were made for this graph, by their variable."""
        return dict(self._functions)

    # Rewriting

    def emit(self, expr: relax.Expr, name: str = "") -> Node:
        """The node of a new Relax expression over the `var`s of nodes; calls may be nested."""
        node = self._node(expr)
        if name and node.op != "const":
            node.name = name
        return node

    def with_inputs(self, node: Node, inputs: Sequence[Node]) -> Node:
        """A copy of a node that computes the same from other inputs of the same types."""
        assert len(inputs) == len(node.inputs) == len(node.args), node
        return self._add(node.op, inputs, node.expr, None)

    def constant(self, array: np.ndarray, name: str) -> Node:
        """A new weight, or a constant in the graph if it is small."""
        if array.size <= SMALL:
            return self._node(relax.const(array, str(array.dtype)))
        return self.param(name, array, array.shape, str(array.dtype))

    def param(self, name: str, value: Source, shape: Sequence[int], dtype: str) -> Node:
        """A new weight of this name (a number is added if it is taken), perhaps made when read."""
        self._names.setdefault(name, 0)
        unique = name
        while unique in self.params:
            self._names[name] += 1
            unique = f"{name}.{self._names[name]}"
        self.params.add(unique, value)
        var = relax.Var(unique, relax.TensorType(tuple(shape), dtype))
        node = self._add("param", (), var, var)
        self._leaves.append(node)
        return node

    def value(self, node: Node) -> np.ndarray:
        """The value of a param or const."""
        if node.op == "param":
            return self.params[node.name]
        assert node.op == "const", node
        return np.asarray(node.expr.value.numpy())

    def scalar(self, node: Node) -> float | None:
        """The value of a constant of one element, else None."""
        if not node.is_constant or node.static_shape is None or np.prod(node.static_shape) != 1:
            return None
        return float(self.value(node).reshape(()))

    def kernel(self, node: Node) -> tirx.PrimFunc:
        """The kernel that a call_tir runs."""
        return self.model.mod[node.expr.args[0]]

    def callee(self, node: Node) -> relax.Function:
        """The function of the module that a call calls."""
        var = node.expr.op
        return self._functions[var] if var in self._functions else self.model.mod[var]

    def function(self, function: relax.Function, hint: str) -> relax.GlobalVar:
        """The GlobalVar of a private function, shared with an equal one if there is one."""
        for var, other in {**dict(self.model.mod.functions_items()), **self._functions}.items():
            if tvm_ffi.structural_equal(other, function, map_free_vars=True):
                return var
        taken = {var.name_hint for var in self.model.mod.get_global_vars()}
        taken |= {var.name_hint for var in self._functions}
        name, number = hint, 0
        while name in taken:
            number += 1
            name = f"{hint}_{number}"
        var = tvm.ir.GlobalVar(name)
        relax.expr._update_type(var, function.ty)
        self._functions[var] = function
        return var

    def replace(self, old: Node, new: Node) -> None:
        """Let every user of `old` use `new`, except what was emitted on the way to `new`."""
        if old is new:
            return
        assert old.dtype == new.dtype and len(old.shape) == len(new.shape), (
            f"{old} of {old.ty} cannot become {new} of {new.ty}"
        )
        for user in list(old.users):
            if user.order[1] > self._mark:
                continue
            user.set_args(_substituted(user.args, old, new))
            new.users[user] = None
            del old.users[user]
        self.outputs = [new if node is old else node for node in self.outputs]
        self._release(old)

    def _release(self, node: Node) -> None:
        """Forget a node that nobody uses, so that `users` counts live ones only."""
        stack = [node]
        while stack:
            dead = stack.pop()
            if dead.users or dead in self.outputs:
                continue
            for source in dead.inputs:
                if source.users.pop(dead, 0) is None:
                    stack.append(source)

    # Building

    def finish(self) -> Model:
        """The Model with this function rewritten; weights that no function reads are dropped."""
        function = self._build()
        var = tvm.ir.GlobalVar(self.name)
        relax.expr._update_type(var, function.ty)
        functions = {
            other: body
            for other, body in self.model.mod.functions_items()
            if other.name_hint != self.name
        }
        mod = tvm.IRModule({**functions, **self._functions, var: function}, self.model.mod.attrs)
        used = {
            param.name
            for name in self.model.signatures
            for param in mod[name].params[int(mod[name].attrs["num_input"]) :]
        }
        params = self.params.only(name for name in self.params if name in used)
        quantized = {name: weight for name, weight in self.quantized.items() if name in used}
        return dataclasses.replace(self.model, mod=mod, params=params, quantized=quantized)

    def _build(self) -> relax.Function:
        nodes = self.nodes()
        live = set(nodes)
        params = [node.var for node in self._leaves if node.op == "input" or node in live]
        builder = relax.BlockBuilder()
        done: dict[Node, Any] = {}
        attrs = dict(self._function.attrs)
        with builder.function(self.name, params, attrs=attrs):
            with builder.dataflow():
                for node in nodes:
                    done[node] = self._bound(builder, node, done)
                result = builder.emit_output(relax.Tuple([done[node] for node in self.outputs]))
            builder.emit_func_output(result)
        return builder.get()[self.name]

    def _bound(
        self, builder: relax.BlockBuilder, node: Node, done: dict[Node, relax.Expr]
    ) -> relax.Expr:
        if node.op in ("input", "param", "const"):
            return node.var
        var = relax.DataflowVar(node.name, node.ty)
        if node.op == "match_cast":
            builder.emit_normalized(relax.MatchCast(var, done[node.inputs[0]], node.ty))
            return var
        if node.op == "tuple_get_item":
            value = _item(done[node.inputs[0]], node.expr.index, node.ty)
        else:
            value = _rebuilt(node.expr, node.args, node.ty, done)
        builder.emit_normalized(relax.VarBinding(var, value))
        return var


def rewrite(model: Model, change: Callable[[Graph], None]) -> Model:
    """Apply `change` to the graph of every exported function."""
    for name in model.signatures:
        graph = Graph(model, name)
        change(graph)
        model = graph.finish()
    return model


def rebuilt(node: Node) -> relax.Expr:
    """The Relax expression of a node over its present inputs; nodes stand for themselves."""
    if node.op == "tuple_get_item":
        return _retyped(node.expr, node.inputs[0])
    return _rebuilt(node.expr, node.args, node.ty)


def _is_value(expr: relax.Expr) -> bool:
    """Whether an argument is a tensor (or tuple of tensors), not a shape, number or function."""
    if isinstance(expr, tvm.ir.GenericConst):
        return True
    if isinstance(expr, (tvm.ir.Call, relax.Var, relax.TupleGetItem)):
        return isinstance(expr.ty, (relax.TensorType, relax.TupleType)) or expr.ty.is_missing()
    return False


def _substituted(args: Sequence[Arg], old: Node, new: Node) -> list[Arg]:
    return [
        tuple(new if field is old else field for field in arg)
        if isinstance(arg, tuple)
        else (new if arg is old else arg)
        for arg in args
    ]


def _rebuilt(
    call: relax.Call,
    args: Sequence[Arg],
    ty: relax.Type,
    done: dict[Node, relax.Expr] | None = None,
) -> relax.Call:
    """The call over the variables of its arguments."""

    def expression(node: Node) -> relax.Expr:
        return node.var if done is None else done[node]

    def plain(arg: Arg) -> Any:
        return expression(arg) if isinstance(arg, Node) else arg

    exprs = [
        relax.Tuple([plain(field) for field in arg]) if isinstance(arg, tuple) else plain(arg)
        for arg in args
    ]
    return tvm.ir.Call(call.op, exprs, call.attrs, call.ty_args, ret_ty=ty)


def _retyped(item: relax.TupleGetItem, source: Node) -> relax.TupleGetItem:
    """A tuple_get_item of another tuple of the same type."""
    return _item(source.var, item.index, source.ty.fields[item.index])


def _item(source: relax.Expr, index: int, ty: relax.Type) -> relax.TupleGetItem:
    item = relax.TupleGetItem(source, index)
    if item.ty.is_missing():
        relax.expr._update_type(item, ty)
    return item
