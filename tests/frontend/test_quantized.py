"""Quantised operators and types below 8 bits: the very integers of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from compiled_runner import compare, compiled, run
from onnx import TensorProto, helper, numpy_helper
from relax_vm import build

from graphc.errors import UnsupportedError
from graphc.frontend import load
from graphc.frontend.onnx import narrow

RNG = np.random.default_rng(3)


def _bytes(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def _wide(*shape: int) -> np.ndarray:
    """Values of every size, halves between two steps, and what is far outside."""
    values = RNG.normal(size=shape).astype("float32") * 4
    flat = values.reshape(-1)
    flat[::3] = np.round(flat[::3] * 8) / 8
    flat[1], flat[2], flat[4], flat[5] = 1e30, -1e30, np.inf, -np.inf
    return values


def test_quantising(tmp_path: Path) -> None:
    """Per tensor, per axis and by blocks, to 8 and 16 bits."""
    nodes, constants = [], {}
    for number, dtype in enumerate(("uint8", "int8", "uint16", "int16")):
        info = np.iinfo(dtype)
        points = RNG.integers(info.min, info.max + 1, 3).astype(dtype)
        constants |= {f"z{number}": points[:1].reshape(()), f"zs{number}": points}
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "s", f"z{number}"], [f"q{number}"]),
            helper.make_node("QuantizeLinear", ["x", "ss", f"zs{number}"], [f"a{number}"], axis=-2),
            helper.make_node("DequantizeLinear", [f"q{number}", "s", f"z{number}"], [f"d{number}"]),
            helper.make_node(
                "DequantizeLinear", [f"a{number}", "ss", f"zs{number}"], [f"e{number}"], axis=1
            ),
        ]
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "s"], ["plain"]),
        helper.make_node("QuantizeLinear", ["x", "blocks"], ["b"], axis=2, block_size=4),
        helper.make_node("DequantizeLinear", ["b", "blocks"], ["c"], axis=2, block_size=4),
    ]
    scales = np.array([0.25, 0.1, 0.013], "float32")
    constants |= {"s": np.array(0.25, "float32"), "ss": scales,
                  "blocks": RNG.uniform(0.01, 0.5, (2, 3, 2)).astype("float32")}  # fmt: skip
    names = [name for node in nodes for name in node.output]
    model = build(nodes, {"x": ("float32", (2, 3, 8))}, names, constants, opset=21)
    compare(model, tmp_path, {"x": _wide(2, 3, 8)}, tolerance=0)


def test_dynamic_quantising(tmp_path: Path) -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    model = build([node], {"x": ("float32", ("n", 9))}, ["y", "s", "z"])
    x = RNG.normal(size=(7, 9)).astype("float32")
    compare(model, tmp_path, {"x": x}, {"x": x + 100}, {"x": x * 0}, {"x": -abs(x)}, tolerance=0)


@pytest.mark.parametrize(("left", "right"), [("uint8", "int8"), ("uint8", "uint8"),
                                             ("int8", "int8")])  # fmt: skip
def test_integer_products(tmp_path: Path, left: str, right: str) -> None:
    nodes = [
        helper.make_node("MatMulInteger", ["a", "w", "az", "wz"], ["y0"]),
        helper.make_node("MatMulInteger", ["a", "w", "", "wzs"], ["y1"]),
        helper.make_node("MatMulInteger", ["a", "b"], ["y2"]),
        helper.make_node("MatMulInteger", ["a", "w", "zero"], ["y3"]),
    ]
    constants = {"w": _bytes(right, 33, 19), "az": _bytes(left)[()], "wz": _bytes(right)[()],
                 "wzs": _bytes(right, 19), "zero": np.zeros((), left)}  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    inputs = {"a": (left, (2, "n", 33)), "b": (right, (2, 33, 5))}
    model = build(nodes, inputs, ["y0", "y1", "y2", "y3"], constants)
    compare(model, tmp_path, {"a": _bytes(left, 2, 13, 33), "b": _bytes(right, 2, 33, 5)})


def test_quantised_products_and_convolutions(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QLinearMatMul", ["a", "s0", "z0", "w", "s1", "z1", "s2", "z2"], ["m"]),
        helper.make_node("ConvInteger", ["x", "k", "z0"], ["c0"], pads=[1, 0, 1, 2]),
        helper.make_node("ConvInteger", ["x", "ku", "z0", "z0"], ["c1"], strides=[2, 1], group=2),
        helper.make_node(
            "QLinearConv", ["x", "s0", "z0", "k", "sk", "zk", "s2", "z2", "bias"], ["c2"],
            pads=[1, 1, 1, 1], dilations=[1, 2],
        ),
        helper.make_node("QLinearConv", ["x", "s0", "z0", "ku", "s1", "z0", "s2", "z2"], ["c3"],
                         group=2, auto_pad="SAME_UPPER"),
    ]  # fmt: skip
    constants: dict[str, Any] = {
        "s0": np.float32(0.02), "s1": np.float32(0.03), "s2": np.float32(0.9), "z0": np.uint8(120),
        "z1": np.int8(-3), "z2": np.uint8(131), "w": _bytes("int8", 40, 6),
        "k": _bytes("int8", 6, 4, 3, 3), "ku": _bytes("uint8", 6, 2, 3, 3),
        "sk": RNG.uniform(0.01, 0.05, 6).astype("float32"), "zk": np.zeros(6, "int8"),
        "bias": RNG.integers(-9000, 9000, 6).astype("int32"),
    }  # fmt: skip
    inputs = {"a": ("uint8", ("n", 40)), "x": ("uint8", ("n", 4, "h", 9))}
    model = build(nodes, inputs, ["m", "c0", "c1", "c2", "c3"], constants)
    compare(model, tmp_path, {"a": _bytes("uint8", 3, 40), "x": _bytes("uint8", 3, 4, 8, 9)})


FLOATS = [t for t in narrow.TYPES.values() if t.is_float]


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_every_code_of_a_small_float(tmp_path: Path, kind: narrow.Narrow) -> None:
    """There and back: every code decodes to ml_dtypes' value and is encoded as itself."""
    number = next(number for number, other in narrow.TYPES.items() if other is kind)
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["y"], ["z"], to=number, saturate=0),
    ]
    model = build(nodes, {"x": ("float32", (1 << kind.bits,))}, ["y", "z"], opset=24)
    model.graph.input[0].type.tensor_type.elem_type = number
    runner = compiled(model, tmp_path)
    assert runner.plan.signature.inputs[0].dtype == kind.carrier
    codes = np.arange(1 << kind.bits, dtype="uint8")
    floats, back = run(runner, {"x": codes})
    np.testing.assert_array_equal(floats, codes.view(kind.numpy).astype("float32"))
    numbers = ~np.isnan(floats)
    if kind.name == "float8_e8m0fnu":
        numbers[0] = False  # 2^-127 has no exponent of its own in float32: ONNX rounds it up
    np.testing.assert_array_equal(back[numbers], codes[numbers])


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
                                  "float8_e5m2fnuz", "float4_e2m1fn"])  # fmt: skip
def test_rounding_to_a_small_float(tmp_path: Path, name: str) -> None:
    kind = narrow.BY_NAME[name]
    number = next(number for number, other in narrow.TYPES.items() if other is kind)
    node = helper.make_node("Cast", ["x"], ["y"], to=number, saturate=0)
    model = build([node], {"x": ("float32", ("n",))}, ["y"], opset=24)
    bits = np.concatenate([RNG.integers(0, 1 << 32, 4000), RNG.integers(0x30000000, 0x48000000,
                           4000)]).astype("uint32")  # fmt: skip
    halves = (np.arange(-300, 300) / np.float32(2) ** RNG.integers(0, 12, 600)).astype("float32")
    x = np.concatenate([bits.view("float32"), halves])
    (got,) = run(compiled(model, tmp_path), {"x": x})
    with np.errstate(all="ignore"):
        want = x.astype(kind.numpy)
    np.testing.assert_array_equal(got.view(kind.numpy).astype("float32"), want.astype("float32"))


def _nibbles(kind: str, *shape: int) -> np.ndarray:
    low, high = narrow.BY_NAME[kind].limits
    return RNG.integers(low, high + 1, shape).astype(getattr(ml_dtypes, kind))


@pytest.mark.parametrize("kind", ["int4", "uint4"])
def test_weights_of_4_bits_stay_packed(tmp_path: Path, kind: str) -> None:
    number = next(n for n, other in narrow.TYPES.items() if other.name == kind)
    nodes = [
        helper.make_node("Gather", ["w", "i"], ["rows"]),
        helper.make_node("DequantizeLinear", ["rows", "s", "z"], ["y"]),
    ]
    constants = {"s": np.array(0.125, "float32")}
    model = build(nodes, {"i": ("int64", ("n",))}, ["y"], constants, opset=21)
    weight, zero = _nibbles(kind, 50, 7), _nibbles(kind)
    for name, values in (("w", weight), ("z", np.asarray(zero))):
        packed = narrow.pack(values.astype("int8"))
        tensor = helper.make_tensor(name, number, values.shape, packed.tobytes(), raw=True)
        model.graph.initializer.append(tensor)
    runner, rows = compiled(model, tmp_path), RNG.integers(0, 50, 9)
    (got,) = run(runner, {"i": rows})
    np.testing.assert_array_equal(got, (weight.astype("float32") - float(zero))[rows] / 8)
    assert runner.built.weights["w"].dtype == np.uint8
    assert runner.built.weights["w"].size == 175


def test_quantising_to_4_bits(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=TensorProto.INT4),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    constants = {"s": np.array(0.5, "float32")}
    model = build(nodes, {"x": ("float32", ("n", 6))}, ["y"], constants, opset=21)
    compare(model, tmp_path, {"x": _wide(5, 6)}, tolerance=0)


def test_arithmetic_on_small_types_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT4),
             helper.make_node("Add", ["i", "i"], ["y"], name="sum")]  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(build(nodes, {"x": ("float32", (4,))}, ["y"], opset=21), path)
    with pytest.raises(UnsupportedError, match=r"'sum'.*computes with int4"):
        load(path)


def test_shifts(tmp_path: Path) -> None:
    x = np.array([1, 200, 77, 255, 3], "uint8")
    by = np.array([1, 3, 0, 7, 2], "uint8")
    nodes = [helper.make_node("BitShift", ["x", "by"], [d], direction=d) for d in ("LEFT", "RIGHT")]
    model = build(nodes, {"x": ("uint8", (5,)), "by": ("uint8", (5,))}, ["LEFT", "RIGHT"])
    compare(model, tmp_path, {"x": x, "by": by})


def test_the_pieces_of_this_file_agree_with_onnx() -> None:
    """What ONNX packs, we unpack."""
    values = _nibbles("int4", 9)
    tensor = numpy_helper.from_array(values, "w")
    data = np.frombuffer(tensor.raw_data, "uint8")
    assert (narrow.unpack(data, narrow.BY_NAME["int4"], 9) == values.astype("int8")).all()
    assert (narrow.pack(values.astype("int8")) == data).all()
