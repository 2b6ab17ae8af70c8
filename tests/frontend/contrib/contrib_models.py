"""One-node com.microsoft models, run through the real stages and through ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from plan_runner import Compiled
from relax_vm import reference

from graphc.frontend import load
from graphc.ir import Model
from graphc.passes.pipeline import graph

DOMAIN = "com.microsoft"


@dataclass
class Case:
    """A node under construction: inputs in order, fed or constant; None is one left out."""

    op_type: str
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    hidden: Sequence[int] = ()
    domain: str = DOMAIN
    names: list[str] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, Sequence[int | str]] = field(default_factory=dict)
    kept: dict[int, np.ndarray] = field(default_factory=dict)
    """Which elements of a result are specified, where not all of them are."""

    def feed(self, array: np.ndarray | None, shape: Sequence[int | str] | None = None) -> Case:
        """A runtime input; letters in `shape` are symbolic dimensions."""
        name = "" if array is None else f"x{len(self.names)}"
        self.names.append(name)
        if array is not None:
            self.feeds[name] = np.require(array, requirements=["C"])
            self.shapes[name] = array.shape if shape is None else shape
        return self

    def constant(self, array: np.ndarray | None) -> Case:
        name = "" if array is None else f"w{len(self.names)}"
        self.names.append(name)
        if array is not None:
            self.constants[name] = np.require(array, requirements=["C"])
        return self

    def node(self, prefix: str = "") -> onnx.NodeProto:
        inputs = [f"{prefix}{name}" if name else "" for name in self.names]
        while inputs and not inputs[-1]:
            inputs.pop()
        outputs = [
            "" if number in self.hidden else f"{prefix}y{number}" for number in range(self.outputs)
        ]
        return helper.make_node(
            self.op_type, inputs, outputs, name=f"{prefix}node", domain=self.domain,
            **self.attributes,
        )  # fmt: skip


def build(cases: Sequence[Case], opset: int = 20) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """All cases beside each other in one model, and what to feed it."""
    nodes, inputs, outputs, weights = [], [], [], []
    feeds: dict[str, np.ndarray] = {}
    for number, case in enumerate(cases):
        prefix = f"n{number}_"
        node = case.node(prefix)
        nodes.append(node)
        outputs += [_output(name, case) for name in node.output if name]
        for name, array in case.feeds.items():
            feeds[prefix + name] = array
            dims = [f"{prefix}{d}" if isinstance(d, str) else d for d in case.shapes[name]]
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(prefix + name, kind, dims))
        weights += [onnx.numpy_helper.from_array(array, prefix + name)
                    for name, array in case.constants.items()]  # fmt: skip
    made = helper.make_graph(nodes, "test", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10), feeds


def _output(name: str, case: Case) -> onnx.ValueInfoProto:
    """Without a type, unless the schema leaves it open."""
    if case.op_type == "MultiHeadAttention" and name.endswith("y3"):
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    return onnx.ValueInfoProto(name=name)


def compiled(model: onnx.ModelProto, folder: Path, **dims: Any) -> tuple[Model, Compiled]:
    path = folder / "model.onnx"
    onnx.save(model, path)
    imported = graph(load(path, dims=dims), None)
    return imported, Compiled(imported)


def run(runner: Compiled, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return runner([feeds[port.name] for port in runner.plan.signature.inputs])


def compare(
    cases: Sequence[Case] | Case, folder: Path, tolerance: float = 2e-5, steps: int = 0, **dims: Any
) -> Model:
    """Every output of every case against ONNX Runtime.

    Integers may differ by `steps`: where two ways of rounding in float32 meet.
    """
    cases = [cases] if isinstance(cases, Case) else cases
    model, feeds = build(cases)
    want = reference(model, feeds)
    imported, runner = compiled(model, folder, **dims)
    got = run(runner, feeds)
    names = [
        (name, case.kept.get(number))
        for node, case in zip(model.graph.node, cases, strict=True)
        for number, name in enumerate(node.output)
        if name
    ]
    assert len(got) == len(want) == len(names)
    for (name, kept), actual, expected in zip(names, got, want, strict=True):
        assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
        if kept is not None:
            mask = np.broadcast_to(kept, actual.shape)
            actual, expected = actual[mask], expected[mask]
        close(actual, expected, name, tolerance, steps)
    return imported


def close(got: np.ndarray, want: np.ndarray, name: str, tolerance: float, steps: int = 0) -> None:
    assert got.dtype == want.dtype, (name, got.dtype, want.dtype)
    assert got.shape == want.shape, (name, got.shape, want.shape)
    if want.dtype.kind in "iu":
        gap = np.abs(got.astype("int64") - want.astype("int64"))
        assert gap.size == 0 or gap.max() <= steps, (name, int(gap.max()), float((gap > 0).mean()))
        return
    bound = max(tolerance, 4e-3) if want.dtype == np.float16 else tolerance
    np.testing.assert_allclose(
        got.astype("float64"), want.astype("float64"), rtol=bound, atol=bound, err_msg=name
    )


def normal(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)
