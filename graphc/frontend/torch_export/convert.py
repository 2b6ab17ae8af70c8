"""Drives an import: nodes in order, each converted by its table's entry, until the bounds hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tvm import relax

from graphc.errors import (
    Blocker,
    ConfigError,
    ModelError,
    UnsupportedError,
    blockers_of,
    refusal,
)
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.symbols import Bounds, Symbols, TightenedError
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.frontend.torch_export.call import Call, dtype_name
from graphc.frontend.torch_export.expressions import Expressions, relation
from graphc.frontend.torch_export.operators import OPERATORS
from graphc.frontend.torch_export.program import Program
from graphc.ir import Expr, Model, Port, Signature

_MAX_ATTEMPTS = 64
_DTYPES = frozenset(
    [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
    ]
)
# What numpy, torch and TVM raise for input that no check of ours refused.
_UNFORESEEN = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
)  # fmt: skip
# Conditions that torch asserted while exporting: they are checked here or hold by construction.
_ASSERTIONS = (
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
)


def convert(
    program: Program,
    given: Mapping[str, int | Bounds],
    source: str,
    outputs: Sequence[str] = (),
) -> Model:
    """The model in Relax; `outputs` names more nodes whose values it returns."""
    implied = _exported_bounds(program, given)
    for _ in range(_MAX_ATTEMPTS):
        try:
            return _Attempt(program, Symbols(given, implied), outputs).run(source)
        except TightenedError as found:
            implied[found.name, found.side] = (found.bound, found.reason)
    raise ModelError(f"{source}: the bounds of its dimensions keep changing")


def _exported_bounds(
    program: Program, given: Mapping[str, int | Bounds]
) -> dict[tuple[str, str], tuple[int, str]]:
    """What torch.export was told of the dimensions; tighter bounds that the user gives stand."""
    implied: dict[tuple[str, str], tuple[int, str]] = {}
    for symbol, name in program.dims.items():
        lower, upper = program.ranges.get(symbol, (0, None))
        asked = given.get(name, Bounds())
        if isinstance(asked, int):
            if asked < lower or (upper is not None and asked > upper):
                raise ConfigError(
                    f"dimension {name}: {asked} was asked for, the model was exported for {lower} "
                    f"to {'any number' if upper is None else upper}"
                )
            continue
        implied[name, "lower"] = (lower, "it was exported for no less")
        if upper is not None and (asked.upper is None or asked.upper > upper):
            implied[name, "upper"] = (upper, "it was exported for no more")
    return implied


class _Attempt:
    def __init__(self, program: Program, symbols: Symbols, outputs: Sequence[str]) -> None:
        self._program, self._symbols = program, symbols
        self._context = Context(symbols, frozenset())
        self._dims: dict[str, Expr] = {}
        self._expressions = Expressions(symbols, self._dims)
        self._blockers: list[Blocker] = []
        self._scope: dict[torch.fx.Node, Any] = {}
        self._observed = tuple(outputs)
        self._lost: set[str] = set()

    def run(self, source: str) -> Model:
        context, program = self._context, self._program
        ports = self._ports()
        self._symbols.check_names()
        inputs = [relax.Var(p.name, relax.TensorType(p.shape, p.dtype)) for p in ports]
        named = {
            port.name: TensorValue(port.name, port.dtype, port.shape, var, source=port.name)
            for port, var in zip(ports, inputs, strict=True)
        }
        for port in ports:
            context.reserve(port.name)
        with context.function():
            with context.builder.dataflow():
                for node in program.graph.nodes:
                    self._node(node, named)
                if self._blockers:
                    raise refusal(source, self._blockers)
                results = [self._result(name, node) for name, node in self._outputs()]
            context.builder.emit_func_output(
                relax.Tuple([value.var for value in results]), [*inputs, *context.param_vars]
            )
        mod = context.builder.get()
        mod["main"] = mod["main"].with_attr("num_input", len(inputs))
        return Model(
            mod=mod,
            params=context.params,
            signatures={"main": self._signature(ports, results)},
            source=source,
            statistics={
                "nodes": sum(node.op == "call_function" for node in program.graph.nodes),
                "parameters": sum(int(data.size) for data in context.params.values()),
                "bytes": sum(int(data.nbytes) for data in context.params.values()),
            },
        )

    # -- inputs and outputs ----------------------------------------------------------------

    def _ports(self) -> list[Port]:
        """The inputs; first every symbol that is an extent by itself becomes a dimension."""
        for symbol, name in self._program.dims.items():
            self._dims[symbol] = self._symbols.dim(name)
        ports = []
        for name, tensor in self._program.inputs:
            shape = tuple(
                self._extent(name, axis, extent) for axis, extent in enumerate(tensor.shape)
            )
            dtype = dtype_name(tensor.dtype)
            if dtype not in _DTYPES:
                error = UnsupportedError(
                    f"input {name} has the type {dtype}, which is not compiled: cast it before"
                )
                self._blockers += blockers_of(error, node=name)
                self._lost.add(name)
                continue
            ports.append(Port(name, dtype, shape))
        return ports

    def _extent(self, name: str, axis: int, extent: Any) -> Expr:
        if isinstance(extent, int):
            return extent
        expr = extent.node.expr
        unknown = [s for s in sorted(expr.free_symbols, key=str) if str(s) not in self._dims]
        if not unknown:
            return self._expressions.expression(expr)
        return self._derived(name, axis, expr, unknown)

    def _derived(self, name: str, axis: int, expr: Any, unknown: Sequence[Any]) -> Expr:
        """An extent such as 4 * s: a dimension of its own, s is a quarter of it, checked."""
        symbol = unknown[0]
        factor = expr.coeff(symbol)
        rest = expr - factor * symbol
        if len(unknown) > 1 or not (factor.is_Integer and rest.is_Integer and factor > 0):
            raise UnsupportedError(
                f"dimension {axis} of input {name} is {expr}: a multiple of one dimension compiles"
            )
        dim = self._symbols.dim(f"{name}_{axis}")
        place = f"dimension {axis} of input {name} is {expr}"
        self._dims[str(symbol)] = self._symbols.floordiv(dim - int(rest), int(factor))
        made = self._expressions.expression(expr)
        self._symbols.unify(made, dim, place)
        return dim

    def _outputs(self) -> list[tuple[str, torch.fx.Node]]:
        chosen = list(self._program.outputs)
        nodes = {node.name: node for node in self._program.graph.nodes}
        for name in self._observed:
            if name not in nodes:
                raise ModelError(f"the program has no value called {name}")
            if name not in [known for known, _ in chosen]:
                chosen.append((name, nodes[name]))
        return chosen

    def _result(self, name: str, node: torch.fx.Node) -> TensorValue:
        value = self._scope[node]
        if not isinstance(value, (TensorValue, KnownValue)):
            raise UnsupportedError(f"output {name} is {value!r}, not a tensor")
        tensor = self._context.tensor(value)
        builder = self._context.builder
        if isinstance(tensor.var, relax.DataflowVar):
            var = builder.emit_output(tensor.var, name)
            return TensorValue(name, tensor.dtype, tensor.shape, var)
        return TensorValue(name, tensor.dtype, tensor.shape, tensor.var)

    def _signature(self, ports: Sequence[Port], results: Sequence[TensorValue]) -> Signature:
        ranges = self._context.ranges
        return Signature(
            inputs=tuple(Port(p.name, p.dtype, p.shape, ranges.get(p.name)) for p in ports),
            outputs=tuple(Port(value.name, value.dtype, value.shape) for value in results),
            dims=self._symbols.symbolic_dims(),
            constraints=tuple(self._symbols.constraints),
        )

    # -- nodes -----------------------------------------------------------------------------

    def _node(self, node: torch.fx.Node, inputs: Mapping[str, TensorValue]) -> None:
        """Converts one node; what cannot be compiled is noted, and what reads it left out."""
        if node.op == "placeholder":
            if node.name in inputs:
                self._scope[node] = inputs[node.name]
            elif node.name in self._program.weights:
                name, data = self._program.weights[node.name]
                self._scope[node] = KnownValue(name, _kind(data), data)
            elif node.name not in self._lost:
                self._scope[node] = None
            return
        if node.op == "output":
            return
        if any(source not in self._scope for source in node.all_input_nodes):
            assert self._blockers, (node.name, "reads a value that nothing made")
            return
        label = f"{node.name} ({_target(node)}){_place(node)}"
        try:
            with np.errstate(all="ignore"):
                self._scope[node] = self._made(node, label)
        except TightenedError:
            raise
        except ModelError as error:
            self._note(error, node, label)
        except _UNFORESEEN as error:
            lines = str(error).strip().splitlines()
            last = lines[-1][:300] if lines else ""
            self._note(ModelError(f"{label}: {type(error).__name__}: {last}"), node, label)

    def _note(self, error: ModelError, node: torch.fx.Node, label: str) -> None:
        namespace, _, operator = _target(node).partition(".")
        self._blockers += blockers_of(
            error,
            node=f"{node.name}{_place(node)}",
            label=label,
            operator=operator or namespace,
            domain=namespace if operator else "",
        )

    def _made(self, node: torch.fx.Node, label: str) -> Any:
        meta = node.meta.get("val")
        if isinstance(meta, (torch.SymInt, int)) and not isinstance(meta, bool):
            return self._expressions.dim(meta)
        target = _target(node)
        if target == "<built-in function getitem>":
            source, index = node.args
            return self._scope[source][index]
        if target in _ASSERTIONS:
            return self._assertion(node, label)
        if isinstance(meta, (torch.SymBool, bool, torch.SymFloat, float)):
            return meta
        convert = OPERATORS.get(target.removeprefix("aten."))
        if convert is None or not isinstance(node.target, torch._ops.OpOverload):
            raise UnsupportedError(f"{label}: {_repair(target)}")
        values = self._arguments(node)
        call = Call(
            context=self._context,
            expressions=self._expressions,
            name=node.name,
            label=label,
            operator=target,
            arguments=values,
            originals=_bound(node, lambda inner: inner.meta.get("val")),
            result=meta,
        )
        result = convert(call)
        if isinstance(result, (TensorValue, KnownValue)):
            return self._agreed(call, result, meta)
        if isinstance(result, (list, tuple)):
            assert isinstance(meta, (list, tuple)), label
            return [
                None if value is None else self._agreed(call, value, own)
                for value, own in zip(result, meta, strict=True)
            ]
        return result

    def _agreed(self, call: Call, value: Value, meta: torch.Tensor) -> Value:
        """The value, proved or assumed to have the shape that torch gives it."""
        dtype = dtype_name(meta.dtype)
        if value.dtype != dtype:
            raise AssertionError(f"{call.label}: {value.dtype} was made, torch has {dtype}")
        shape = tuple(self._expressions.dim(extent) for extent in meta.shape)
        if len(shape) != value.rank:
            raise AssertionError(f"{call.label}: {value.shape} was made, torch has {shape}")
        if isinstance(value, KnownValue):
            return value
        return self._context.cast_shape(value, shape, call.label)

    def _arguments(self, node: torch.fx.Node) -> dict[str, Any]:
        def resolved(item: Any) -> Any:
            value = self._scope[item]
            if isinstance(value, torch.SymFloat):
                return self._real(value)
            return value

        return _bound(node, resolved)

    def _real(self, value: torch.SymFloat) -> float:
        if value.node.expr.is_number:
            return float(value.node.expr)
        raise UnsupportedError(
            f"the number {value.node.expr} depends on a dimension: compute it with tensors"
        )

    def _assertion(self, node: torch.fx.Node, label: str) -> None:
        """What torch assumed of the dimensions becomes a bound or a constraint."""
        condition = node.args[0]
        meta = condition.meta.get("val") if isinstance(condition, torch.fx.Node) else None
        if not isinstance(meta, torch.SymBool):
            return
        compared = relation(meta.node.expr)
        if compared is None:
            return
        kind, left, right = compared
        sides = (self._expressions.expression(left), self._expressions.expression(right))
        if kind == "==":
            self._symbols.unify(*sides, label)
        else:
            self._symbols.require_at_most(*sides, label)


def _bound(node: torch.fx.Node, resolve: Any) -> dict[str, Any]:
    """Arguments by the schema's names, defaults filled in, nodes replaced by `resolve`."""
    assert isinstance(node.target, torch._ops.OpOverload), node.target
    schema = node.target._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    given.update(node.kwargs)
    bound: dict[str, Any] = {}
    for argument in schema:
        if argument.name in given:
            bound[argument.name] = torch.fx.node.map_arg(given[argument.name], resolve)
        elif argument.has_default_value():
            bound[argument.name] = argument.default_value
    return bound


def _target(node: torch.fx.Node) -> str:
    return str(node.target)


def _repair(target: str) -> str:
    if target.startswith("aten."):
        return "not compiled yet: write it with other operators"
    if "higher_order" in target or target in ("cond", "while_loop", "scan", "map_impl"):
        return "control flow that depends on data is not compiled: use torch.where"
    return "not an ATen operator: register a decomposition, or write it with torch's own operators"


def _place(node: torch.fx.Node) -> str:
    """at file:line of the module's source, or of the module."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    frames = [number for number, line in enumerate(lines) if line.startswith("File ")]
    if frames:
        file, _, rest = lines[frames[-1]].removeprefix("File ").partition(", line ")
        number = rest.partition(",")[0]
        code = lines[frames[-1] + 1] if frames[-1] + 1 < len(lines) else ""
        short = file.strip('"').rpartition("site-packages/")[2]
        return f" at {short}:{number}" + (f", `{code}`" if code else "")
    stack = node.meta.get("nn_module_stack") or {}
    path = next((item[0] for item in reversed(list(stack.values())) if item[0]), "")
    return f" in module {path}" if path else ""


def _kind(data: np.ndarray) -> str:
    name = str(data.dtype)
    if name not in _DTYPES:
        raise UnsupportedError(f"a weight has the type {name}, which is not compiled")
    return name
