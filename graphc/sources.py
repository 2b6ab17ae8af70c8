"""Which files a model consists of: needed for the cache's key, before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from graphc.errors import ModelError


def files(model: Path) -> list[Path]:
    """The model file and the external data that it names inside its own folder.

    Names that lead outside are left out and a file that cannot be parsed stands alone: the
    importer, which comes next, reports both.
    """
    if model.is_dir():
        return sorted(file for file in model.iterdir() if file.is_file())
    if model.suffix != ".onnx":
        return [model]
    try:
        proto = onnx.load(str(model), load_external_data=False)
    except DecodeError:
        return [model]
    except OSError as error:
        raise ModelError(f"{model}: cannot be read: {error.strerror or error}") from error
    folder = model.resolve().parent
    nodes = (node for function in proto.functions for node in function.node)
    names = {*_in_graph(proto.graph), *_in_nodes(nodes)}
    paths = ((folder / name).resolve() for name in sorted(names) if "\0" not in name)
    return [model, *(path for path in paths if path.is_relative_to(folder))]


def calibration(path: Path | None) -> list[Path]:
    """The files of a calibration set: one .npz, or all of them in a folder."""
    if path is None:
        return []
    return sorted(path.glob("*.npz")) if path.is_dir() else [path]


def _in_graph(graph: onnx.GraphProto) -> Iterator[str]:
    yield from _in_tensors(graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from _in_tensors((sparse.values, sparse.indices))
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _in_tensors((attribute.t, *attribute.tensors))
            for graph in (attribute.g, *attribute.graphs):
                yield from _in_graph(graph)


def _in_tensors(tensors: Iterable[onnx.TensorProto]) -> Iterator[str]:
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                yield entry.value
