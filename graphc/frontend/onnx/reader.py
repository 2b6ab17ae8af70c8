"""ONNX file -> checked graph: protobuf, operator sets, names, types and sizes."""

from __future__ import annotations

from pathlib import Path

import google.protobuf.message
import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from graphc.errors import Blocker, ModelError, UnsupportedError, blockers_of
from graphc.frontend.onnx import narrow, wire
from graphc.frontend.onnx.graph import Graph, GraphInput, domain_of, sound
from graphc.frontend.onnx.tensors import TensorReader, map_file
from graphc.frontend.onnx.values import DTYPES, dtype_name

OLDEST_OPSET = 7
"""Before opset 7 elementwise operators broadcast by an attribute."""


def read(path: Path, outputs: tuple[str, ...] = ()) -> tuple[Graph, TensorReader]:
    """Reads and checks a model; `outputs` are more values to return."""
    file = _bytes(path)
    parts = wire.split(file.data)
    model = _parsed(path, parts)
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError(f"{path}: not an ONNX model, or one without a graph or outputs")
    _check_text(model)
    reader = TensorReader(path, file)
    return _graph(model, parts, reader, outputs), reader


def structure(path: Path) -> ModelProto:
    """The model without its large weights, not checked."""
    return _parsed(path, wire.split(_bytes(path).data))


def _parsed(path: Path, parts: wire.Split) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(parts.structure)
    except (google.protobuf.message.DecodeError, RecursionError) as error:
        raise ModelError(f"{path}: not an ONNX model: {error}") from error
    return model


def _check_text(model: ModelProto) -> None:
    """protobuf gives names that are not UTF-8 as bytes; refuse them here, once."""
    graph = model.graph
    names = [entry.domain for entry in model.opset_import]
    names += [tensor.name for tensor in graph.initializer]
    for info in (*graph.input, *graph.output):
        names.append(info.name)
        names += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
    for function in model.functions:
        names += [function.name, function.domain, *function.input, *function.output]
        names += [entry.domain for entry in function.opset_import]
    pending = [*graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        for attribute in node.attribute:
            names.append(attribute.name)
            for inner in (attribute.g, *attribute.graphs):
                pending += inner.node
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"not an ONNX model: the name {name!r} is not UTF-8 text")


def _bytes(path: Path) -> np.ndarray:
    try:
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        return map_file(path, path.stat().st_size)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def _graph(
    model: ModelProto, parts: wire.Split, reader: TensorReader, extra: tuple[str, ...]
) -> Graph:
    graph = model.graph
    blockers: list[Blocker] = []
    if graph.sparse_initializer:
        sparse = UnsupportedError("the model has sparse initializers: make them dense")
        blockers += blockers_of(sparse)
    lost = {tensor.values.name for tensor in graph.sparse_initializer}
    weights = _weights(graph, parts, reader, blockers)
    lost |= {tensor.name for tensor in graph.initializer} - set(weights)
    inputs: list[GraphInput] = []
    for info in graph.input:
        try:
            if info.name not in weights and info.name not in lost:
                inputs.append(_input(info))
        except ModelError as error:
            blockers += blockers_of(error, node=info.name)
            lost.add(info.name)
    names = [item.name for item in inputs]
    if len(set(names)) != len(names) or "" in names:
        raise ModelError(f"graph inputs {names} have no name or the same name")
    nodes, unsound = sound(graph.node, (*weights, *names, *lost))
    blockers += unsound
    made = {name for node in graph.node for name in node.output} | set(names) | set(weights) | lost
    wanted = [info.name for info in graph.output]
    if len(set(wanted)) != len(wanted):
        raise ModelError(f"graph outputs {wanted} name a value twice")
    for name in (*wanted, *extra):
        if name not in made or not name:
            nothing = ModelError(f"graph output {name!r} is made by no node")
            blockers += blockers_of(nothing, node=name)
    opsets, unknown = _opsets(model)
    return Graph(
        inputs=tuple(inputs),
        outputs=tuple(dict.fromkeys((*wanted, *extra))),
        nodes=nodes,
        weights=weights,
        dtypes={
            t.name: _carrier(t.data_type) or DTYPES.get(t.data_type, "float32")
            for t in graph.initializer
        },
        narrow={
            t.name: narrow.TYPES[t.data_type].name
            for t in graph.initializer
            if t.data_type in narrow.TYPES
        },
        opsets=opsets,
        functions={(domain_of(f.domain), f.name): f for f in model.functions},
        all_nodes=tuple(graph.node),
        blockers=(*unknown, *blockers),
        convertible=not unknown,
    )


def _weights(
    graph: onnx.GraphProto, parts: wire.Split, reader: TensorReader, blockers: list[Blocker]
) -> dict[str, np.ndarray]:
    """The initializers that can be read; `blockers` gains the others."""
    assert len(parts.weights) == len(graph.initializer), (len(parts.weights), "extents")
    weights: dict[str, np.ndarray] = {}
    for tensor, extent in zip(graph.initializer, parts.weights, strict=True):
        try:
            if not tensor.name or tensor.name in weights:
                raise ModelError(f"initializer {tensor.name!r} has no name or is defined twice")
            weights[tensor.name] = reader.read(tensor, extent)
        except ModelError as error:
            blockers += blockers_of(error, node=tensor.name)
    return weights


def _opsets(model: ModelProto) -> tuple[dict[str, int], tuple[Blocker, ...]]:
    """The versions by domain, and what is wrong with that of ONNX's own."""
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = domain_of(entry.domain)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"operator set {domain!r} is imported in two versions")
    version, newest = opsets.get(""), onnx.defs.onnx_opset_version()
    if version is None:
        if all(domain_of(node.domain) for node in model.graph.node):
            return opsets, ()
        error = ModelError("the model does not say which ONNX operator set it uses")
        return {**opsets, "": newest}, blockers_of(error)
    if OLDEST_OPSET <= version <= newest:
        return opsets, ()
    error = UnsupportedError(
        f"ONNX operator set {version}: {OLDEST_OPSET} to {newest} are compiled: "
        "convert the model with onnx.version_converter"
    )
    clamped = min(max(version, OLDEST_OPSET), newest)
    return {**opsets, "": clamped}, blockers_of(error, opset=version)


def _input(info: ValueInfoProto) -> GraphInput:
    if info.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"input {info.name!r} is not a tensor: only tensors are compiled")
    tensor = info.type.tensor_type
    small = narrow.TYPES.get(tensor.elem_type)
    if tensor.elem_type not in DTYPES and small is None:
        kind = dtype_name(tensor.elem_type)
        if tensor.elem_type == TensorProto.UNDEFINED:
            raise ModelError(f"input {info.name!r} has no element type")
        raise UnsupportedError(f"input {info.name!r}: element type {kind} is not compiled")
    if not tensor.HasField("shape"):
        raise UnsupportedError(
            f"input {info.name!r} has no rank: run onnx.shape_inference or export it with a shape"
        )
    shape: list[int | str | None] = []
    for axis, dim in enumerate(tensor.shape.dim):
        # Some exporters write -1 for a length that is not known.
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            if dim.dim_value >= 2**40:
                raise ModelError(
                    f"input {info.name!r}: axis {axis} has length {dim.dim_value}: "
                    "that is more than any memory holds"
                )
            shape.append(dim.dim_value)
        else:
            # Paddle's exporter writes "?" for each length that it does not know: no common name.
            shape.append(None if dim.dim_param in ("", "?") else dim.dim_param)
    if len(shape) > 16:
        raise ModelError(
            f"input {info.name!r} has {len(shape)} dimensions: at most 16 are compiled"
        )
    dtype = small.carrier if small else DTYPES[tensor.elem_type]
    return GraphInput(info.name, dtype, tuple(shape), small.name if small else "")


def _carrier(elem_type: int) -> str | None:
    small = narrow.TYPES.get(elem_type)
    return small.carrier if small else None
