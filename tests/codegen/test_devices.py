"""Device targets through the artifact's own runtime, on a device that is there or its stand-in.

OpenCL: PoCL on the CPU (apt install pocl-opencl-icd ocl-icd-libopencl1). Vulkan: lavapipe (apt
install mesa-vulkan-drivers libvulkan1; vulkan-validationlayers checks how it is used). What is not
there is skipped.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_models
from onnx import TensorProto, helper
from tvm import relax

import graphc
from graphc import compiler
from graphc.codegen import vulkan
from graphc.codegen.device import build_device
from graphc.codegen.glsl import print_kernel
from graphc.codegen.templates.gpu import rows
from graphc.errors import GraphcError
from graphc.targets import load
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


def has_vulkan() -> bool:
    """A loader, and a driver's description where loaders look for them."""
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return False
    folders = (Path(root) / "vulkan/icd.d" for root in ("/usr/share", "/etc", "/usr/local/share"))
    return any(folder.glob("*.json") for folder in folders)


KINDS = [
    pytest.param(
        "opencl",
        marks=pytest.mark.skipif(
            not has_opencl(),
            reason="no OpenCL device: apt install pocl-opencl-icd ocl-icd-libopencl1",
        ),
    ),
    pytest.param(
        "vulkan",
        marks=pytest.mark.skipif(
            not has_vulkan(),
            reason="no Vulkan device: apt install mesa-vulkan-drivers libvulkan1",
        ),
    ),
]
each_kind = pytest.mark.parametrize("kind", KINDS)


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


@each_kind
def test_a_transformer_block_equals_onnx_runtime(kind: str, tmp_path: Path, binaries: Path) -> None:
    source = block(tmp_path / "block.onnx")
    artifact = compiler.compile(source, kind, tmp_path / "block.gc")
    assert artifact.manifest.numerics is not None and artifact.manifest.numerics["passed"]
    templates = {kernel.template.split("/")[0] for kernel in artifact.manifest.kernels}
    assert {"gpu matmul", "gpu attention", "gpu layer_norm"} <= templates
    for batch, length in ((1, 1), (2, 63), (1, 64), (3, 65)):
        assert verify(tmp_path / "block.gc", source, {"batch": batch, "s": length}).passed
    assert list(binaries.iterdir())


@each_kind
def test_names_of_a_model_never_become_code(kind: str, tmp_path: Path) -> None:
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
    compiler.compile(source, kind, tmp_path / "hostile.gc")


@each_kind
def test_a_damaged_binary_is_compiled_again(kind: str, tmp_path: Path, binaries: Path) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, kind, tmp_path / "mlp.gc")
    for binary in binaries.iterdir():
        data = bytearray(binary.read_bytes())
        data[len(data) // 2 :] = b"x" * (len(data) - len(data) // 2)
        binary.write_bytes(data)
    assert verify(tmp_path / "mlp.gc", source, {"batch": 5}).passed


@each_kind
def test_index_checks_and_odd_inputs(kind: str, tmp_path: Path) -> None:
    compiler.compile(tiny_models.embedding(tmp_path / "e.onnx"), kind, tmp_path / "e.gc")
    with graphc.load(tmp_path / "e.gc") as model:
        ids = np.arange(24).reshape(4, 6)
        (whole,) = model.run(None, {"ids": ids})
        (strided,) = model.run(None, {"ids": ids[:, ::2]})
        np.testing.assert_array_equal(strided, whole[:, ::2])
        with pytest.raises(GraphcError, match="the index at"):
            model.run(None, {"ids": np.full((1, 2), 50)})
        np.testing.assert_array_equal(model.run(None, {"ids": ids})[0], whole)


@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
def test_without_a_driver_the_remedy_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, kind, tmp_path / "mlp.gc", verify=False)
    for variable in ("GRAPHC_OPENCL_DEVICE", "GRAPHC_VULKAN_DEVICE"):
        monkeypatch.setenv(variable, "99")
    with pytest.raises(GraphcError, match=r"OpenCL|Vulkan"):
        graphc.load(tmp_path / "mlp.gc")


@pytest.mark.skipif(
    not has_vulkan() or not Path("/usr/share/vulkan/explicit_layer.d").is_dir(),
    reason="no Vulkan validation: apt install vulkan-validationlayers mesa-vulkan-drivers",
)
def test_vulkan_is_used_as_its_validation_layer_demands(tmp_path: Path) -> None:
    compiler.compile(block(tmp_path / "block.onnx"), "vulkan", tmp_path / "b.gc", verify=False)
    command = [tmp_path / "b.gc" / "graphc-run", tmp_path / "b.gc", "--random"]
    done = subprocess.run(
        [*command, "--dim", "batch=2", "--dim", "s=5", "--repeat", "2"],
        env={**os.environ, "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "alidation" not in done.stdout + done.stderr, done.stdout + done.stderr


def test_glsl_keeps_the_roundings_of_polynomials() -> None:
    """x + big - big rounds x: a compiler that simplifies it gives another exponential."""
    device = load.get("vulkan")
    kernel = rows.build_softmax(
        [SimpleNamespace(ty=relax.TensorType((3, 50), "float32"))],
        SimpleNamespace(axis=-1),
        relax.TensorType((3, 50), "float32"),
        device,
    )
    assert kernel is not None
    words: list[str] = []

    def keep(function: Any, name: str) -> bytes:
        words.append(print_kernel(function))
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vulkan, "compile_kernel", keep)
        build_device({"softmax": kernel}, device)
    (text,) = words
    assert "local_size_x = 64" in text and "barrier();" in text
    lines = [line for line in text.splitlines() if "12583038" in line or "12582912" in line]
    assert lines and all("precise float" in line for line in lines), text


def test_constants_keep_all_their_bits_in_opencl() -> None:
    """TVM prints seven digits: 12583038 would become 12583040, a power of two off in exp."""
    device = load.get("opencl")
    kernel = rows.build_softmax(
        [SimpleNamespace(ty=relax.TensorType((3, 50), "float32"))],
        SimpleNamespace(axis=-1),
        relax.TensorType((3, 50), "float32"),
        device,
    )
    assert kernel is not None
    _, (built,) = build_device({"softmax": kernel}, device)
    text = built.code.decode()
    bits = np.float32(12583038).view(np.int32)
    assert f"as_float({bits})" in text and "1.258304e+07" not in text
