"""Integer graphs run in the packed integer GEMM, to ONNX Runtime's very integers if possible."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).resolve().parents[1] / "frontend"))

from compiled_runner import Compiled, compiled, run
from relax_vm import reference

RNG = np.random.default_rng(11)
K, N = 37, 21
KINDS = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "float32": TensorProto.FLOAT,
         "int32": TensorProto.INT32}  # fmt: skip


def random_bytes(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, dtype, endpoint=True)


def onnx_model(
    nodes: Sequence[onnx.NodeProto], x: tuple[str, int], y: str, constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """x [batch, rows, depth] -> y [batch, rows, columns]"""
    graph = helper.make_graph(
        nodes,
        "integer",
        [helper.make_tensor_value_info("x", KINDS[x[0]], ["b", "r", x[1]])],
        [helper.make_tensor_value_info("y", KINDS[y], ["b", "r", None])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def both(
    model: onnx.ModelProto, folder: Path, x: Sequence[np.ndarray]
) -> tuple[Compiled, list[tuple[np.ndarray, np.ndarray]]]:
    runner = compiled(model, folder)
    assert "gemm_int8" in runner.templates
    return runner, [(run(runner, {"x": v})[0], reference(model, {"x": v})[0]) for v in x]


@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("w_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("zeros", [(), (0,), (0, 1)])
def test_matmul_integer(a_dtype: str, w_dtype: str, zeros: tuple[int, ...], tmp_path: Path) -> None:
    """Without zero points, with one on the left, with one for each column on the right: exact."""
    w = random_bytes(w_dtype, K, N)
    w[0, :2] = np.iinfo(w_dtype).min, np.iinfo(w_dtype).max
    points = {0: random_bytes(a_dtype)[()], 1: random_bytes(w_dtype, N)}
    constants = {"w": w, **{f"z{i}": np.asarray(points[i]) for i in zeros}}
    node = helper.make_node("MatMulInteger", ["x", "w", *(f"z{i}" for i in zeros)], ["y"])
    model = onnx_model([node], (a_dtype, K), "int32", constants)
    for found, expected in both(model, tmp_path, [random_bytes(a_dtype, 2, 7, K)])[1]:
        np.testing.assert_array_equal(found, expected)


def test_qlinear_matmul(tmp_path: Path) -> None:
    """The requantisation is fused behind the product, and is ONNX Runtime's."""
    constants = {
        "sa": np.float32(0.02), "za": np.uint8(117), "w": random_bytes("int8", K, N),
        "sw": np.float32(0.01), "zw": np.int8(0), "sy": np.float32(0.15), "zy": np.uint8(130),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *constants], ["y"])
    constants = {name: np.asarray(value) for name, value in constants.items()}
    model = onnx_model([node], ("uint8", K), "uint8", constants)
    runner, pairs = both(model, tmp_path, [random_bytes("uint8", 3, 5, K) for _ in range(3)])
    assert len(runner.built.kernels) == 2  # the depth of 37 is filled up to 40 first
    for found, expected in pairs:
        np.testing.assert_array_equal(found, expected)


def test_dynamic_quantisation(tmp_path: Path) -> None:
    """DynamicQuantizeLinear, MatMulInteger, Cast, Mul: as onnxruntime.quantization writes it."""
    constants = {"w": random_bytes("int8", K, N), "zw": np.int8(0), "sw": np.float32(0.01)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "zw"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "sw"], ["scale"]),
        helper.make_node("Mul", ["wide", "scale"], ["y"]),
    ]
    constants = {name: np.asarray(value) for name, value in constants.items()}
    model = onnx_model(nodes, ("float32", K), "float32", constants)
    x = [RNG.standard_normal((2, rows, K)).astype("float32") for rows in (1, 13)]
    for found, expected in both(model, tmp_path, x)[1]:
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("op_type", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_contrib_products(op_type: str, tmp_path: Path) -> None:
    w, scales = random_bytes("int8", K, N), np.linspace(0.01, 0.02, N).astype("float32")
    bias = RNG.standard_normal(N).astype("float32")
    constants = {"w": w, "sw": scales, "bias": bias}
    dtype = "float32"
    inputs = ["x", "w", "sw", "", "bias"]
    if op_type == "MatMulIntegerToFloat":
        constants |= {"sa": np.asarray(np.float32(0.03)), "za": np.asarray(np.uint8(99))}
        dtype, inputs = "uint8", ["x", "w", "sa", "sw", "za", "", "bias"]
    node = helper.make_node(op_type, inputs, ["y"], domain="com.microsoft")
    model = onnx_model([node], (dtype, K), "float32", constants)
    x = RNG.standard_normal((2, 9, K)).astype("float32")
    x = x if dtype == "float32" else random_bytes("uint8", 2, 9, K)
    for found, expected in both(model, tmp_path, [x])[1]:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("a_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_qdq(a_dtype: str, transposed: bool, tmp_path: Path) -> None:
    """DQ, DQ, MatMul, Add, Q, DQ: at most one step from ONNX Runtime, whose sums are floats."""
    w = random_bytes("int8", N, K) if transposed else random_bytes("int8", K, N)
    constants = {
        "sx": np.float32(0.02), "zx": np.asarray(random_bytes(a_dtype)[()]),
        "w": w, "sw": np.linspace(0.01, 0.02, N).astype("float32"), "zw": np.zeros(N, "int8"),
        "bias": RNG.standard_normal(N).astype("float32"), "sy": np.float32(0.1),
        "zy": np.asarray(np.array(3).astype(a_dtype)),
    }  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["v"], axis=0 if transposed else 1),
        helper.make_node("Transpose", ["v"], ["vt"]),
        helper.make_node("MatMul", ["a", "vt" if transposed else "v"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["t"]),
        helper.make_node("QuantizeLinear", ["t", "sy", "zy"], ["y"]),
    ]
    if not transposed:
        del nodes[3]
    model = onnx_model(nodes, ("float32", K), a_dtype, constants)
    x = [RNG.standard_normal((2, rows, K)).astype("float32") for rows in (1, 14)]
    runner, pairs = both(model, tmp_path, x)
    assert "gemm" not in runner.templates
    for found, expected in pairs:
        steps = np.abs(found.astype(int) - expected.astype(int))
        assert steps.max() <= 1
        assert steps.mean() < 0.02


def test_a_product_of_two_activations_keeps_its_loops(tmp_path: Path) -> None:
    node = helper.make_node("MatMulInteger", ["x", "t"], ["y"])
    turn = helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1])
    model = onnx_model([turn, node], ("uint8", K), "int32", {})
    runner = compiled(model, tmp_path)
    assert "gemm_int8" not in runner.templates
    x = random_bytes("uint8", 2, 5, K)
    np.testing.assert_array_equal(run(runner, {"x": x})[0], reference(model, {"x": x})[0])


@pytest.mark.parametrize(("op_type", "stride"), [("ConvInteger", 1), ("QLinearConv", 2)])
def test_convolutions(op_type: str, stride: int, tmp_path: Path) -> None:
    """As products of patches; what lies outside the image is the zero point."""
    constants = {
        "k": random_bytes("int8", 6, 5, 3, 3), "zx": np.uint8(131), "sx": np.float32(0.02),
        "sk": np.linspace(0.01, 0.02, 6).astype("float32"), "zk": np.zeros(6, "int8"),
        "sy": np.float32(0.4), "zy": np.uint8(120), "bias": np.arange(6, dtype="int32") * 100,
    }  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    inputs = ["x", "sx", "zx", "k", "sk", "zk", "sy", "zy", "bias"]
    inputs = ["x", "k", "zx"] if op_type == "ConvInteger" else inputs
    node = helper.make_node(op_type, inputs, ["y"], pads=[1, 0, 1, 2], strides=[stride, stride])
    model = onnx_model([node], ("uint8", 1), "int32" if len(inputs) == 3 else "uint8", constants)
    for port in (model.graph.input[0], model.graph.output[0]):
        del port.type.tensor_type.shape.dim[:]
        for name in ("b", 5 if port.name == "x" else 6, "height" + port.name, "width" + port.name):
            dim = port.type.tensor_type.shape.dim.add()
            if isinstance(name, int):
                dim.dim_value = name
            else:
                dim.dim_param = name
    images = [random_bytes("uint8", 2, 5, *size) for size in ((9, 11), (4, 6))]
    for found, expected in both(model, tmp_path, images)[1]:
        np.testing.assert_array_equal(found, expected)
