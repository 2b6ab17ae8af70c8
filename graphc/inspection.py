"""What an artifact or a model file is made of, as plain data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from graphc import artifact
from graphc.errors import ModelError


def artifact_record(directory: Path) -> dict[str, object]:
    """The manifest, with kernels counted by template and without the weights' single entries."""
    manifest = artifact.read_manifest(directory)
    templates = Counter(kernel.template or "none" for kernel in manifest.kernels)
    return {
        "format_version": manifest.format_version,
        "graphc_version": manifest.graphc_version,
        "tvm_version": manifest.tvm_version,
        "source": manifest.source,
        "target": _plain(manifest.target),
        "functions": [_plain(function) for function in manifest.functions],
        "weights": {"tensors": len(manifest.weights.entries), "bytes": manifest.weights.size},
        "kernels": {"count": len(manifest.kernels), "by_template": dict(templates.most_common())},
        "files": [_plain(file) for file in manifest.files],
        "numerics": manifest.numerics,
    }


def _plain(record: Any) -> dict[str, object]:
    """A dataclass as JSON has it: lists for tuples, and without what is not set."""
    plain: dict[str, object] = json.loads(json.dumps(asdict(record)))
    return plain


def model_record(path: Path) -> dict[str, object]:
    """Inputs, outputs, operators and weights of an ONNX file or an exported program."""
    return _program_record(path) if path.suffix == ".pt2" else _onnx_record(path)


def _program_record(path: Path) -> dict[str, object]:
    from graphc.frontend.torch_export import require_torch

    require_torch(str(path))
    from graphc.frontend.torch_export import archive, program

    exported, names = archive.read(path)
    prepared = program.prepare(exported, names)
    nodes = [node for node in prepared.graph.nodes if node.op == "call_function"]
    outputs = [(name, node.meta["val"]) for name, node in prepared.outputs]
    arrays = {id(data): data for _, data in prepared.weights.values()}
    return {
        "dims": {
            name: [low, high]
            for symbol, name in prepared.dims.items()
            for low, high in [prepared.ranges.get(symbol, (0, None))]
        },
        "inputs": [_tensor_port(name, tensor, prepared.dims) for name, tensor in prepared.inputs],
        "outputs": [_tensor_port(name, tensor, prepared.dims) for name, tensor in outputs],
        "weights": {
            "tensors": len(arrays),
            "elements": sum(int(data.size) for data in arrays.values()),
        },
        "nodes": len(nodes),
        "operators": dict(Counter(str(node.target) for node in nodes).most_common()),
    }


def _tensor_port(name: str, tensor: Any, dims: Mapping[str, str]) -> dict[str, object]:
    """A dimension is a number, a dimension's name, or an expression of torch's symbols."""
    shape = [n if isinstance(n, int) else dims.get(str(n), str(n)) for n in tensor.shape]
    return {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}


def _onnx_record(path: Path) -> dict[str, object]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise ModelError(f"{path}: not an ONNX file, or a damaged one: {error}") from error
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    sizes = (int(np.prod(tensor.dims, dtype=object)) for tensor in graph.initializer)
    operators = Counter(".".join(filter(None, (n.domain, n.op_type))) for n in graph.node)
    return {
        "ir_version": model.ir_version,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "inputs": _ports(value for value in graph.input if value.name not in weights),
        "outputs": _ports(graph.output),
        "weights": {"tensors": len(weights), "elements": sum(sizes)},
        "nodes": len(graph.node),
        "operators": dict(operators.most_common()),
    }


def _ports(values: Iterable[object]) -> list[dict[str, object]]:
    import onnx

    ports: list[dict[str, object]] = []
    for value in values:
        assert isinstance(value, onnx.ValueInfoProto), value
        tensor = value.type.tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        ports.append({"name": value.name, "dtype": kind, "shape": shape})
    return ports
