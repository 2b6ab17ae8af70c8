"""Small ONNX files for tests: a multilayer perceptron and an embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weight(name: str, *shape: int, seed: int = 0) -> onnx.TensorProto:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return numpy_helper.from_array(values / np.float32(np.sqrt(shape[0])), name)


def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, graph: onnx.GraphProto) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def perceptron(path: Path, nodes: list[onnx.NodeProto] | None = None) -> Path:
    """x [batch, 24] -> y [batch, 40]: matmul, bias, relu, matmul, bias."""
    default = [
        helper.make_node("MatMul", ["x", "w1"], ["h1"], name="first"),
        helper.make_node("Add", ["h1", "b1"], ["h2"], name="bias"),
        helper.make_node("Relu", ["h2"], ["h3"], name="gate"),
        helper.make_node("MatMul", ["h3", "w2"], ["h4"], name="second"),
        helper.make_node("Add", ["h4", "b2"], ["y"], name="last"),
    ]
    weights = [
        weight("w1", 24, 64),
        weight("b1", 64),
        weight("w2", 64, 40, seed=1),
        weight("b2", 40, seed=2),
    ]
    inputs, outputs = [value("x", ["batch", 24])], [value("y", ["batch", 40])]
    return save(path, helper.make_graph(nodes or default, "mlp", inputs, outputs, weights))


def embedding(path: Path) -> Path:
    """ids [batch, sequence] in a table of 50 rows -> y [batch, sequence, 8]."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"], name="lookup")]
    inputs = [value("ids", ["batch", "sequence"], TensorProto.INT64)]
    outputs = [value("y", ["batch", "sequence", 8])]
    return save(path, helper.make_graph(nodes, "embed", inputs, outputs, [weight("table", 50, 8)]))


def embedding_and_product(path: Path) -> Path:
    """ids [batch, sequence] in a table of 50 rows, normed, times a matrix -> y [.., 96]."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["x"], name="lookup"),
        helper.make_node("LayerNormalization", ["x", "gamma"], ["n"], name="norm", axis=-1),
        helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
    ]
    weights = [weight("table", 50, 64), weight("gamma", 64, seed=1), weight("w", 64, 96, seed=2)]
    inputs = [value("ids", ["batch", "sequence"], TensorProto.INT64)]
    outputs = [value("y", ["batch", "sequence", 96])]
    return save(path, helper.make_graph(nodes, "product", inputs, outputs, weights))


def deep_perceptron(path: Path, depth: int = 20) -> Path:
    """x [batch, 16] -> y [batch, 16]: nodes multiply_k and gate_k, for k from 0 on."""
    nodes, weights, last = [], [], "x"
    for k in range(depth):
        out = "y" if k == depth - 1 else f"h{k}"
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"m{k}"], name=f"multiply_{k}"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [out], name=f"gate_{k}"))
        weights.append(weight(f"w{k}", 16, 16, seed=k))
        last = out
    inputs, outputs = [value("x", ["batch", 16])], [value("y", ["batch", 16])]
    return save(path, helper.make_graph(nodes, "deep", inputs, outputs, weights))
