"""Operators that are graphs of other operators: the model's own functions and ONNX's bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, NodeProto

from graphc.frontend.onnx.graph import domain_of
from graphc.frontend.onnx.values import DTYPES, Value

_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(frozen=True)
class Body:
    """A function made concrete for one node: attributes filled in."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]


def own_body(function: FunctionProto, node: NodeProto) -> Body:
    """The body of one of the model's functions."""
    return _instantiate(function, node)


def standard_body(
    node: NodeProto, version: int, inputs: Sequence[Value | None] | None
) -> Body | None:
    """The body that the ONNX standard gives for an operator, None when it gives none.

    Some bodies depend on the types of the inputs; without `inputs` floats are supposed.
    """
    domain = domain_of(node.domain)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    node = _with_defaults(node, schema)
    if schema.has_function:
        body = schema.function_body
        # A schema's body is written for the version in which it appeared.
        return _instantiate(body, node, _fill_opsets(body, domain, schema.since_version))
    if not schema.has_context_dependent_function:
        return None
    types = [_type_of(value) for value in inputs or [None] * len(node.input)]
    if inputs is None:
        types = [_float_type()] * len(node.input)
    try:
        text = schema.get_context_dependent_function(node.SerializeToString(), types)
    except (RuntimeError, ValueError, onnx.defs.SchemaError):
        return None
    function = FunctionProto()
    function.ParseFromString(text)
    if not function.node:
        return None
    return _instantiate(function, node, _fill_opsets(function, domain, version))


def _with_defaults(node: NodeProto, schema: onnx.defs.OpSchema) -> NodeProto:
    """A body refers to attributes by name and expects those with a default to be there."""
    given = {attribute.name for attribute in node.attribute}
    full = NodeProto()
    full.CopyFrom(node)
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            full.attribute.add().CopyFrom(attribute.default_value)
    return full


def _fill_opsets(function: FunctionProto, domain: str, version: int) -> dict[str, int]:
    opsets = {domain_of(entry.domain): entry.version for entry in function.opset_import}
    opsets.setdefault("", version if domain == "" else onnx.defs.onnx_opset_version())
    return opsets


def _type_of(value: Value | None) -> bytes:
    if value is None:
        return b""
    shape = [extent if isinstance(extent, int) else None for extent in value.shape]
    return bytes(
        onnx.helper.make_tensor_type_proto(_NUMBERS[value.dtype], shape).SerializeToString()
    )


def _float_type() -> bytes:
    return bytes(onnx.helper.make_tensor_type_proto(1, None).SerializeToString())


def _instantiate(
    function: FunctionProto, node: NodeProto, opsets: Mapping[str, int] | None = None
) -> Body:
    given = {attribute.name: attribute for attribute in node.attribute}
    for default in function.attribute_proto:
        given.setdefault(default.name, default)
    if opsets is None:
        opsets = {domain_of(entry.domain): entry.version for entry in function.opset_import}
    nodes = []
    for inner in function.node:
        copy = NodeProto()
        copy.CopyFrom(inner)
        del copy.attribute[:]
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                copy.attribute.append(attribute)
            elif attribute.ref_attr_name in given:
                filled = copy.attribute.add()
                filled.CopyFrom(given[attribute.ref_attr_name])
                filled.name = attribute.name
        nodes.append(copy)
    return Body(tuple(function.input), tuple(function.output), tuple(nodes), dict(opsets))
