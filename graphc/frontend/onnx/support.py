"""Lists everything in a graph that graphc does not compile, before anything is converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, NodeProto

from graphc.errors import Blocker, ModelError, UnsupportedError, blockers_of
from graphc.frontend.onnx.functions import Body, own_body, standard_body
from graphc.frontend.onnx.graph import Graph, describe, domain_of, name_of
from graphc.frontend.onnx.table import Registry
from graphc.frontend.onnx.unroll import reads

MAX_DEPTH = 16
"""Functions in functions; also what stops a function that calls itself."""

MAX_NODES = 200_000
"""Nodes after functions are expanded; the largest real exports have some 50,000."""


def blockers(graph: Graph, registry: Registry) -> tuple[Blocker, ...]:
    """One for each node that cannot be compiled, with its operator, version and remedy."""
    scan = _Scan(graph, registry)
    nodes = graph.all_nodes or graph.nodes
    return tuple(dict.fromkeys((*graph.blockers, *scan.nodes(nodes, graph.opsets, 0))))


def _check(node: NodeProto, opsets: Mapping[str, int]) -> ModelError | None:
    """Checks a node against ONNX's schema: number of inputs, names and types of attributes."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = dict(opsets)
    try:
        onnx.checker.check_node(node, context)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        reason = str(error).strip().splitlines()[0]
        return ModelError(f"{describe(node)}: {reason}")
    return None


class _Scan:
    def __init__(self, graph: Graph, registry: Registry) -> None:
        self._graph = graph
        self._registry = registry
        self._count = 0

    def nodes(
        self, nodes: Sequence[NodeProto], opsets: Mapping[str, int], depth: int
    ) -> Iterator[Blocker]:
        for node in nodes:
            self._count += 1
            if self._count > MAX_NODES:
                raise ModelError(f"the model has more than {MAX_NODES} nodes in its functions")
            yield from self._node(node, opsets, depth)
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH and depth < MAX_DEPTH:
                    yield from self.nodes(attribute.g.node, opsets, depth + 1)

    def _node(self, node: NodeProto, opsets: Mapping[str, int], depth: int) -> Iterator[Blocker]:
        domain = domain_of(node.domain)
        version = opsets.get(domain)
        function = self._graph.functions.get((domain, node.op_type))
        has_graph = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
                        for a in node.attribute)  # fmt: skip
        standard = version is not None and onnx.defs.has(node.op_type, version, domain)
        if standard and not has_graph and function is None and self._graph.convertible:
            error = _check(node, opsets)
            if error is not None:
                yield from _about(node, error, version)
                return
        if function is not None:
            if depth >= MAX_DEPTH:
                raise ModelError(
                    f"function {node.op_type} calls itself or is nested deeper than {MAX_DEPTH}"
                )
            yield from self._body(own_body(function, node), depth)
        elif version is None:
            reason = (
                f"{describe(node)}: the model does not say which version of domain {domain!r} it "
                "uses: add it to opset_import"
            )
            yield from _about(node, UnsupportedError(reason), version)
        elif domain == "" and reads(node.op_type, version):
            pass  # its graphs are walked like all
        elif self._registry.find(domain, node.op_type, version) is None:
            expandable = depth < MAX_DEPTH and not has_graph
            body = standard_body(node, version, None) if expandable else None
            inner = [] if body is None else list(self._body(body, depth))
            if body is None or inner:
                reason = _reason(node, domain, version, self._registry)
                if inner:
                    reason = f"{reason} (its body: {inner[0]})"
                yield from _about(node, UnsupportedError(reason), version)

    def _body(self, body: Body, depth: int) -> Iterator[Blocker]:
        return self.nodes(body.nodes, body.opsets, depth + 1)


def _about(node: NodeProto, error: ModelError, version: int | None) -> tuple[Blocker, ...]:
    return blockers_of(
        error,
        node=name_of(node),
        label=describe(node),
        operator=node.op_type,
        domain=domain_of(node.domain) or "ai.onnx",
        opset=version,
    )


def _reason(node: NodeProto, domain: str, version: int, registry: Registry) -> str:
    full = f"{domain}::{node.op_type}" if domain else node.op_type
    place = f"{describe(node)}: {full}, operator set {version} of {domain or 'ai.onnx'}"
    versions = registry.versions(domain, node.op_type)
    if versions:
        return f"{place}: compiled from version {versions[0]}: use onnx.version_converter"
    if domain == "" and not onnx.defs.has(node.op_type, version, ""):
        if onnx.defs.has(node.op_type):
            return f"{place}: not in this version: use onnx.version_converter"
        return f"{place}: no such operator in ONNX"
    if domain == "":
        return f"{place}: not compiled yet: export without it or rewrite it with other operators"
    return f"{place}: not compiled: export without it, or define it as a function in the model"
