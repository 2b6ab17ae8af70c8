"""Runs an imported model with TVM's own virtual machine, to compare it with ONNX Runtime."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
import tvm_ffi
from tvm import relax

from graphc.frontend import load
from graphc.ir import Model

TOLERANCE = {"float32": 1e-5, "float64": 1e-10, "float16": 4e-3}


@functools.cache
def register_check_indices() -> None:
    """Gives the virtual machine the index check that graphc's runtime does itself."""

    def check_indices(indices: Any, low: int, high: int, where: str) -> Any:
        values = indices.numpy()
        if values.size and not low <= values.min() <= values.max() <= high:
            raise ValueError(f"{where}: index out of range {low}..{high}")
        return _tensor(values)  # a copy: the machine's memory plan knows of no aliases

    tvm_ffi.register_global_func("graphc.check_indices", check_indices, override=True)


class Runner:
    """A built model: call it with named arrays, get the outputs in order."""

    def __init__(self, model: Model) -> None:
        register_check_indices()
        self.model = model
        executable = relax.build(model.mod, tvm.target.Target({"kind": "llvm"}))
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        params = model.mod["main"].params[len(model.signatures["main"].inputs) :]
        self._weights = [_tensor(model.params[var.name]) for var in params]

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        inputs = [_tensor(feeds[port.name]) for port in self.model.signatures["main"].inputs]
        results = self._machine["main"](*inputs, *self._weights)
        return [result.numpy() for result in results]


def _tensor(array: np.ndarray) -> Any:
    return tvm.runtime.tensor(np.require(array, requirements=["C", "A"]))


def reference(model: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime gives without its graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def compare(
    model: onnx.ModelProto,
    folder: Path,
    *feeds: Mapping[str, np.ndarray],
    tolerance: float | None = None,
) -> Model:
    """Imports a model, runs it on each of `feeds` and compares every output with ONNX Runtime."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    imported = load(path)
    runner = Runner(imported)
    for feed in feeds:
        for port, got, want in zip(
            imported.signatures["main"].outputs, runner(feed), reference(model, feed), strict=True
        ):
            assert_close(got, want, port.name, tolerance)
    return imported


def assert_close(
    got: np.ndarray, want: np.ndarray, name: str, tolerance: float | None = None
) -> None:
    """Same type, same shape, close values; equal ones for integers."""
    assert got.dtype == want.dtype, (name, got.dtype, want.dtype)
    assert got.shape == want.shape, (name, got.shape, want.shape)
    if got.dtype.kind == "f":
        bound = tolerance if tolerance is not None else TOLERANCE[str(got.dtype)]
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound, err_msg=name)
    else:
        np.testing.assert_array_equal(got, want, err_msg=name)


def single(
    op_type: str,
    inputs: Mapping[str, tuple[str, Sequence[int | str | None]]],
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    order: Sequence[str] | None = None,
    outputs: int = 1,
    opset: int = 20,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node; `order` lists the node's inputs ("" for a missing one)."""
    constants = constants or {}
    names = [f"y{index}" for index in range(outputs)]
    node = onnx.helper.make_node(
        op_type, list(order or (*inputs, *constants)), names, name="node", **attributes
    )
    return build([node], inputs, names, constants, opset)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int | str | None]]],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    """A model of some nodes; outputs have no declared type: ONNX Runtime infers it."""
    graph = onnx.helper.make_graph(
        nodes,
        "test",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
            )
            for name, (dtype, shape) in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            onnx.numpy_helper.from_array(np.asarray(array), name)
            for name, array in (constants or {}).items()
        ],
    )
    return onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10
    )
