"""OpenCL targets through the artifact's own runtime: on a device that is there, or PoCL on the CPU.

Install PoCL with `apt install pocl-opencl-icd ocl-icd-libopencl1`; without a device those tests are
skipped.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
from onnx import TensorProto, helper

import graphc
from graphc import compiler
from graphc.errors import GraphcError
from graphc.verify import verify


def has_opencl() -> bool:
    """A driver loader, and a device behind it."""
    try:
        library = ctypes.CDLL("libOpenCL.so.1")
    except OSError:
        return False
    platforms, count = (ctypes.c_void_p * 4)(), ctypes.c_uint32()
    if library.clGetPlatformIDs(4, platforms, ctypes.byref(count)) or not count.value:
        return False
    devices = ctypes.c_uint32()
    everything = ctypes.c_uint64(0xFFFFFFFF)
    first = ctypes.c_void_p(platforms[0])
    return not library.clGetDeviceIDs(first, everything, 0, None, ctypes.byref(devices))


needs_opencl = pytest.mark.skipif(
    not has_opencl(),
    reason="no OpenCL device: apt install pocl-opencl-icd ocl-icd-libopencl1",
)


@pytest.fixture(autouse=True)
def binaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_DEVICE_CACHE", str(tmp_path / "binaries"))
    return tmp_path / "binaries"


def block(path: Path) -> Path:
    """Ids to attention over 2 heads, a layer norm, GELU and a residual: x [batch, s, 48]."""
    width, heads = 48, 2
    each = width // heads

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
        return helper.make_node(kind, inputs, [output], name=output, **attributes)

    nodes = [node("Gather", ["table", "ids"], "x")]
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], f"{name}0"),
            node("Reshape", [f"{name}0", "split"], f"{name}1"),
            node(
                "Transpose", [f"{name}1"], name, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            ),
        ]
    nodes += [
        node("MatMul", ["q", "k"], "scores"),
        node("Mul", ["scores", "scale"], "scaled"),
        node("Softmax", ["scaled"], "weights", axis=-1),
        node("MatMul", ["weights", "v"], "heads"),
        node("Transpose", ["heads"], "side", perm=[0, 2, 1, 3]),
        node("Reshape", ["side", "join"], "joined"),
        node("MatMul", ["joined", "wo"], "projected"),
        node("Add", ["projected", "x"], "residual"),
        node("LayerNormalization", ["residual", "gamma", "beta"], "normed", axis=-1),
        node("MatMul", ["normed", "w1"], "wide"),
        node("Add", ["wide", "b1"], "biased"),
        node("Gelu", ["biased"], "active"),
        node("MatMul", ["active", "w2"], "narrow"),
        node("Add", ["narrow", "normed"], "y"),
    ]
    weights = [tiny_models.weight("table", 50, width), tiny_models.weight("w1", width, 70)]
    weights += [tiny_models.weight(f"w{name}", width, width, seed=3) for name in "qkvo"]
    weights += [tiny_models.weight("w2", 70, width), tiny_models.weight("b1", 70)]
    weights += [tiny_models.weight("gamma", width), tiny_models.weight("beta", width)]
    weights += [
        helper.make_tensor("split", TensorProto.INT64, [4], [0, 0, heads, each]),
        helper.make_tensor("join", TensorProto.INT64, [3], [0, 0, width]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [each**-0.5]),
    ]
    inputs = [tiny_models.value("ids", ["batch", "s"], TensorProto.INT64)]
    outputs = [tiny_models.value("y", ["batch", "s", width])]
    graph = helper.make_graph(nodes, "block", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@needs_opencl
def test_a_transformer_block_equals_onnx_runtime(tmp_path: Path, binaries: Path) -> None:
    source = block(tmp_path / "block.onnx")
    artifact = compiler.compile(source, "opencl", tmp_path / "block.gc")
    assert artifact.manifest.numerics is not None and artifact.manifest.numerics["passed"]
    templates = {kernel.template.split("/")[0] for kernel in artifact.manifest.kernels}
    assert {"gpu matmul", "gpu softmax", "gpu layer_norm"} <= templates
    for batch, length in ((1, 1), (2, 63), (1, 64), (3, 65)):
        assert verify(tmp_path / "block.gc", source, {"batch": batch, "s": length}).passed
    assert list(binaries.glob("*.bin"))


@needs_opencl
def test_names_of_a_model_never_become_code(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "/w){}*/ int"], ["*/ #error"], name="first"),
        helper.make_node("Add", ["*/ #error", 'b"1"'], ["y"], name="second"),
    ]
    weights = [tiny_models.weight("/w){}*/ int", 24, 40), tiny_models.weight('b"1"', 40)]
    inputs = [tiny_models.value("x", ["return;", 24])]
    outputs = [tiny_models.value("y", ["return;", 40])]
    source = tiny_models.save(
        tmp_path / "hostile.onnx", helper.make_graph(nodes, "g", inputs, outputs, weights)
    )
    compiler.compile(source, "opencl", tmp_path / "hostile.gc")


@needs_opencl
def test_a_damaged_binary_is_compiled_again(tmp_path: Path, binaries: Path) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, "opencl", tmp_path / "mlp.gc")
    for binary in binaries.glob("*.bin"):
        binary.write_bytes(b"no program" * 10)
    assert verify(tmp_path / "mlp.gc", source, {"batch": 5}).passed


@needs_opencl
def test_index_checks_and_odd_inputs(tmp_path: Path) -> None:
    compiler.compile(tiny_models.embedding(tmp_path / "e.onnx"), "opencl", tmp_path / "e.gc")
    with graphc.load(tmp_path / "e.gc") as model:
        ids = np.arange(24).reshape(4, 6)
        (whole,) = model.run(None, {"ids": ids})
        (strided,) = model.run(None, {"ids": ids[:, ::2]})
        np.testing.assert_array_equal(strided, whole[:, ::2])
        with pytest.raises(GraphcError, match="the index at"):
            model.run(None, {"ids": np.full((1, 2), 50)})
        np.testing.assert_array_equal(model.run(None, {"ids": ids})[0], whole)


def test_without_a_driver_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, "opencl", tmp_path / "mlp.gc", verify=False)
    monkeypatch.setenv("GRAPHC_OPENCL_DEVICE", "99")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    with pytest.raises(GraphcError, match="OpenCL"):
        graphc.load(tmp_path / "mlp.gc")
