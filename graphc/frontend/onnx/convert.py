"""Drives an import: nodes in order, each folded or converted, until the bounds hold still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto
from tvm import relax

from graphc.errors import Blocker, ModelError, UnsupportedError, blockers_of, refusal
from graphc.flow import Program
from graphc.frontend.onnx import narrow
from graphc.frontend.onnx.apply import made
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.functions import Body, own_body, standard_body
from graphc.frontend.onnx.graph import Graph, describe, domain_of, in_order, name_of
from graphc.frontend.onnx.node import NARROW_VALUE, Node
from graphc.frontend.onnx.split import split
from graphc.frontend.onnx.symbols import Bounds, Symbols, TightenedError
from graphc.frontend.onnx.table import Registry
from graphc.frontend.onnx.tensors import TensorReader
from graphc.frontend.onnx.unroll import reads, unroll
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.ir import Expr, Model, Port, Signature

_MAX_ATTEMPTS = 64
# Nodes in chosen branches and written-out iterations; a nest of loops multiplies.
_MAX_WRITTEN_OUT = 20_000
# What numpy, onnx and TVM raise for input that no check of ours refused. An AssertionError is a
# fault of our own and stays one.
_UNFORESEEN = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError
)  # fmt: skip


@dataclass(frozen=True)
class Function:
    """What an import makes: a function of this name, beside those of `beside`, for a choice."""

    name: str = "main"
    choice: tuple[str, bool] | None = None
    beside: Model | None = None


def convert(
    graph: Graph,
    reader: TensorReader,
    registry: Registry,
    given: Mapping[str, int | Bounds],
    source: str,
    refused: Sequence[Blocker] = (),
    function: Function = Function(),
) -> Model:
    """The model in Relax; raises for `refused` and all other blockers together.

    A bound that the graph implies for a dimension is often found after shapes that it would
    simplify, so the import starts again with it, at most once for each bound.
    """
    implied: dict[tuple[str, str], tuple[int, str]] = {}
    for _ in range(_MAX_ATTEMPTS):
        try:
            symbols = Symbols(given, implied)
            return _Attempt(graph, reader, registry, symbols, refused, function).run(source)
        except TightenedError as found:
            implied[found.name, found.side] = (found.bound, found.reason)
    raise ModelError(f"{source}: the bounds of its dimensions keep changing")


class _LostError(Exception):
    """What a node needs is lost to a blocker that is known."""


class _Attempt:
    def __init__(
        self,
        graph: Graph,
        reader: TensorReader,
        registry: Registry,
        symbols: Symbols,
        refused: Sequence[Blocker],
        function: Function,
    ) -> None:
        self._function = function
        self._graph = graph
        self._reader = reader
        self._registry = registry
        self._symbols = symbols
        self._context = Context(symbols, frozenset(graph.outputs), function.beside)
        self._blockers = list(refused)
        self._refused = {(blocker.node, blocker.operator) for blocker in refused}
        self._lost: set[str] = set()
        self._written_out = 0

    def run(self, source: str) -> Model:
        context, graph = self._context, self._graph
        ports = [
            Port(
                item.name,
                item.dtype,
                self._input_shape(item.name, item.shape),
                narrow=item.narrow,
            )
            for item in graph.inputs
        ]
        self._symbols.check_names()
        scope: dict[str, Value | None] = {
            name: KnownValue(name, graph.dtypes[name], data, graph.narrow.get(name, ""))
            for name, data in graph.weights.items()
        }
        inputs = [relax.Var(p.name, relax.TensorType(p.shape, p.dtype)) for p in ports]
        small = {item.name: item.narrow for item in graph.inputs}
        for port, var in zip(ports, inputs, strict=True):
            context.reserve(port.name)
            scope[port.name] = TensorValue(
                port.name, port.dtype, port.shape, var, source=port.name, narrow=small[port.name]
            )
        with context.function(self._function.name):
            with context.builder.dataflow():
                self._nodes(graph.nodes, graph.opsets, scope, "")
                if self._blockers:
                    raise refusal(source, tuple(dict.fromkeys(self._blockers)))
                results = [self._result(name, scope) for name in graph.outputs]
            context.builder.emit_func_output(
                relax.Tuple([value.var for value in results]), [*inputs, *context.param_vars]
            )
        return self._model(ports, results, source)

    def _model(self, ports: Sequence[Port], results: Sequence[TensorValue], source: str) -> Model:
        context, name, beside = self._context, self._function.name, self._function.beside
        mod = context.builder.get()
        signature = self._signature(ports, results)
        signatures: Mapping[str, Signature] = {name: signature}
        programs: Mapping[str, Program] = {}
        if context.points:
            parts = split(mod, name, signature, context.points, context.param_vars,
                          self._symbols.dims, self._symbols.variables)  # fmt: skip
            mod, signatures, programs = parts.mod, parts.signatures, {name: parts.program}
        else:
            mod[name] = mod[name].with_attr("num_input", len(ports))
        if beside is not None:
            signatures = {**beside.signatures, **signatures}
            programs = {**beside.programs, **programs}
        return Model(
            mod=mod,
            params=context.weights(),
            quantized=context.quantized,
            signatures=signatures,
            programs=programs,
            source=source,
            statistics={
                "nodes": len(self._graph.nodes),
                "parameters": sum(int(data.size) for data in context.params.values()),
                "bytes": sum(int(data.nbytes) for data in context.params.values()),
            },
        )

    def _input_shape(self, name: str, shape: Sequence[int | str | None]) -> tuple[Expr, ...]:
        taken = {dim for item in self._graph.inputs for dim in item.shape if isinstance(dim, str)}
        result: list[Expr] = []
        for axis, extent in enumerate(shape):
            if extent is None:
                extent = f"{name}_{axis}"
                while extent in taken:
                    extent += "_"
            result.append(extent if isinstance(extent, int) else self._symbols.dim(extent))
        return tuple(result)

    def _result(self, name: str, scope: Mapping[str, Value | None]) -> TensorValue:
        value = scope[name]
        assert value is not None, (name, "an output is missing")
        tensor = self._context.tensor(value)
        if isinstance(tensor.var, relax.DataflowVar):
            var = self._context.builder.emit_output(tensor.var, name)
            return replace(tensor, name=name, var=var)
        return replace(tensor, name=name)

    def _signature(self, ports: Sequence[Port], results: Sequence[TensorValue]) -> Signature:
        ranges = self._context.ranges
        return Signature(
            inputs=tuple(replace(p, value_range=ranges.get(p.name)) for p in ports),
            outputs=tuple(
                Port(value.name, value.dtype, value.shape, narrow=value.narrow) for value in results
            ),
            dims=self._symbols.symbolic_dims(),
            constraints=tuple(self._symbols.constraints),
            choice=self._function.choice,
        )

    # -- nodes -----------------------------------------------------------------------------

    def _nodes(
        self,
        nodes: Sequence[NodeProto],
        opsets: Mapping[str, int],
        scope: dict[str, Value | None],
        prefix: str,
    ) -> None:
        """Converts `nodes`, adding what they make to `scope`.

        A node that turns out not to be compilable is noted and its results are left out, and so
        are those of what reads them: all such nodes are reported together.
        """
        for proto in nodes:
            label = prefix + describe(proto)
            known = (name_of(proto), proto.op_type) in self._refused
            if known or any(name and name not in scope for name in proto.input):
                assert self._blockers, (label, "reads a value that nothing made")
                self._lost.update(proto.output)
                continue
            try:
                with np.errstate(all="ignore"):
                    self._node(proto, opsets, scope, label, prefix)
            except TightenedError:
                raise
            except _LostError:
                self._lost.update(proto.output)
            except ModelError as error:
                self._note(error, proto, opsets, label)
            except _UNFORESEEN as error:
                self._note(ModelError(f"{label}: {_first_line(error)}"), proto, opsets, label)

    def _note(
        self, error: ModelError, proto: NodeProto, opsets: Mapping[str, int], label: str
    ) -> None:
        domain = domain_of(proto.domain)
        self._blockers += blockers_of(
            error,
            node=name_of(proto),
            label=label,
            operator=proto.op_type,
            domain=domain or "ai.onnx",
            opset=opsets.get(domain),
        )
        self._lost.update(proto.output)

    def _node(
        self,
        proto: NodeProto,
        opsets: Mapping[str, int],
        scope: dict[str, Value | None],
        label: str,
        prefix: str,
    ) -> None:
        domain = domain_of(proto.domain)
        inputs = tuple(scope[name] if name else None for name in proto.input)
        function = self._graph.functions.get((domain, proto.op_type))
        if function is not None:
            self._call(own_body(function, proto), proto, inputs, scope, label)
            return
        version = opsets[domain]
        operator = self._registry.find(domain, proto.op_type, version)
        flows = domain == "" and reads(proto.op_type, version)
        if operator is None and not flows:
            body = standard_body(proto, version, inputs)
            if body is None:
                raise UnsupportedError(f"{label}: its inputs' types have no compiled form")
            self._call(body, proto, inputs, scope, label)
            return
        node = Node(
            label=label,
            domain=domain,
            op_type=proto.op_type,
            version=version,
            inputs=inputs,
            outputs=tuple(f"{prefix}{name}" if name else "" for name in proto.output),
            attributes=self._attributes(proto),
        )
        results: Sequence[Value | None]
        if operator is None:

            def run(graph: GraphProto, given: Mapping[str, Value | None], at: str) -> list[Value]:
                return self._subgraph(graph, opsets, {**scope, **given}, f"{label}: {at}")

            results = unroll(self._context, node, run)
        else:
            results = made(self._context, operator, node)
        for name, value in zip(proto.output, results, strict=False):
            if name:
                scope[name] = value

    def _subgraph(
        self,
        graph: GraphProto,
        opsets: Mapping[str, int],
        scope: dict[str, Value | None],
        prefix: str,
    ) -> list[Value]:
        """The outputs of a branch or of an iteration; `scope` has what is around it."""
        self._written_out += len(graph.node) + 1
        if self._written_out > _MAX_WRITTEN_OUT:
            raise UnsupportedError(
                f"{prefix}branches and iterations make more than {_MAX_WRITTEN_OUT} nodes"
            )
        for tensor in graph.initializer:
            data = self._reader.read(tensor)
            scope[tensor.name] = KnownValue(f"{prefix}{tensor.name}", str(data.dtype), data)
        self._nodes(in_order(graph.node, {*scope, *self._lost}), opsets, scope, prefix)
        results = [scope.get(info.name) for info in graph.output]
        found = [value for value in results if value is not None]
        if len(found) != len(results):
            if self._blockers:
                raise _LostError
            raise ModelError(f"{prefix}an output of its graph is made by no node")
        return found

    def _call(
        self,
        body: Body,
        proto: NodeProto,
        inputs: Sequence[Value | None],
        scope: dict[str, Value | None],
        label: str,
    ) -> None:
        if len(inputs) > len(body.inputs) or len(proto.output) > len(body.outputs):
            raise ModelError(f"{label}: it has more inputs or outputs than its function")
        missing = [None] * (len(body.inputs) - len(inputs))
        inner: dict[str, Value | None] = dict(zip(body.inputs, (*inputs, *missing), strict=True))
        nodes = in_order(body.nodes, body.inputs)
        self._nodes(nodes, body.opsets, inner, f"{label}: ")
        for name, formal in zip(proto.output, body.outputs, strict=False):
            if name and formal in inner:
                scope[name] = inner[formal]
            elif name and self._blockers:
                self._lost.add(name)
            elif name:
                raise ModelError(f"{label}: its function does not make {formal!r}")

    # -- attributes ------------------------------------------------------------------------

    def _attributes(self, proto: NodeProto) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            if attribute.name in attributes:
                raise ModelError(f"{describe(proto)}: attribute {attribute.name} is given twice")
            attributes[attribute.name] = self._attribute(attribute)
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in narrow.TYPES:
                attributes[NARROW_VALUE] = narrow.TYPES[attribute.t.data_type].name
        return attributes

    def _attribute(self, attribute: AttributeProto) -> Any:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, TensorProto):
            return self._reader.read(value)
        return tuple(value) if isinstance(value, (list, tuple)) else value


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[-1][:300] if text else ''}"
