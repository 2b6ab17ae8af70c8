"""Random nodes of the 8-bit operators, within what ONNX Runtime's CPU provider takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from contrib_models import Case, normal


def scale(rng: np.random.Generator, *shape: int, of: float = 0.02) -> np.ndarray:
    return np.asarray(rng.uniform(0.5, 2.0, shape) * of, "float32")


def octets(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max + 1, shape)).astype(dtype)


def zero(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return np.asarray(rng.integers(3, 120, shape)).astype(dtype)


def _side(
    case: Case, rng: np.random.Generator, dtype: str, array: Sequence[int], names: Sequence[object]
) -> None:
    """A value, its scale and its zero point."""
    case.feed(octets(rng, dtype, *array), names)  # type: ignore[arg-type]
    case.constant(scale(rng)).constant(zero(rng, dtype))


def integer_to_float(rng: np.random.Generator) -> Case:
    left, right = (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))[int(rng.integers(3))]
    by_column = (24,) if rng.random() < 0.5 else ()
    case = Case("MatMulIntegerToFloat").feed(octets(rng, left, 2, 5, 16), ("b", "s", 16))
    case.constant(octets(rng, right, 16, 24)).constant(scale(rng)).constant(scale(rng, *by_column))
    case.constant(zero(rng, left) if rng.random() < 0.7 else None)
    case.constant(zero(rng, right, *by_column) if rng.random() < 0.7 else None)
    return case.constant(normal(rng, 24) if rng.random() < 0.5 else None)


def dynamic(rng: np.random.Generator) -> Case:
    kind = str(rng.choice(["uint8", "int8"]))
    by_column = (24,) if rng.random() < 0.5 else ()
    case = Case("DynamicQuantizeMatMul").feed(normal(rng, 2, 5, 16), ("b", "s", 16))
    case.constant(octets(rng, kind, 16, 24)).constant(scale(rng, *by_column, of=0.002))
    case.constant(zero(rng, kind, *by_column) if rng.random() < 0.7 else None)
    return case.constant(normal(rng, 24) if rng.random() < 0.5 else None)


def gemm(rng: np.random.Generator) -> Case:
    left, right = (("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8"))[int(rng.integers(3))]
    turn = int(rng.integers(2))
    by_column = (24,) if rng.random() < 0.5 else ()
    case = Case("QGemm", {"alpha": 0.5, "transB": turn})
    case.feed(octets(rng, left, 5, 16), ("n", 16)).constant(scale(rng)).constant(zero(rng, left))
    weights = octets(rng, right, 16, 24)
    case.constant(weights.T if turn else weights).constant(scale(rng, *by_column))
    case.constant(zero(rng, right, *by_column))
    bias = rng.integers(-9999, 9999, 24).astype("int32")
    case.constant(bias if rng.random() < 0.6 else None)
    if rng.random() < 0.5:
        case.constant(scale(rng, of=0.5)).constant(zero(rng, left))
    return case


def attention(rng: np.random.Generator) -> Case:
    heads, size, past, length = 4, 8, int(rng.choice([0, 3])), 5
    hidden = heads * size
    kind = str(rng.choice(["uint8", "int8"]))
    by_column = (3 * hidden,) if rng.random() < 0.5 else ()
    attributes = {"num_heads": heads, "unidirectional": int(rng.integers(2))}
    case = Case("QAttention", attributes, outputs=2 if past else 1)
    case.feed(octets(rng, "uint8", 2, length, hidden), ("b", "s", hidden))
    case.constant(octets(rng, kind, hidden, 3 * hidden)).constant(normal(rng, 3 * hidden))
    case.constant(scale(rng, of=0.003)).constant(scale(rng, *by_column, of=0.003))
    mask = (rng.random((2, past + length)) < 0.7).astype("int32")
    case.feed(mask if rng.random() < 0.6 else None, ("b", "t"))
    case.constant(zero(rng, "uint8")).constant(zero(rng, kind, *by_column))
    cache = normal(rng, 2, 2, heads, past, size) if past else None
    return case.feed(cache, (2, "b", heads, "p", size))


def pointwise(rng: np.random.Generator) -> Case:
    kind = str(rng.choice(["uint8", "int8"]))
    name = str(rng.choice(["Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "GlobalAveragePool",
                           "AveragePool", "Concat", "Where"]))  # fmt: skip
    case = Case(f"QLinear{name}")
    out = 0.05 if name == "Add" else 0.01
    if name in ("Add", "Mul"):
        _side(case, rng, kind, (2, 5, 16), ("b", "s", 16))
        row = (16,) if rng.random() < 0.5 else (5, 16)
        _side(case, rng, kind, row, ("s", 16)[-len(row) :])
        return case.constant(scale(rng, of=out)).constant(zero(rng, kind))
    if name == "Concat":
        case.attributes["axis"] = 1
        case.constant(scale(rng)).constant(zero(rng, kind))
        for width in (3, 4):
            _side(case, rng, kind, (2, width, 16), ("b", width, 16))
        return case
    if name == "Where":
        case.feed(rng.random((2, 5, 16)) < 0.5, ("b", "s", 16))
        for _ in range(2):
            _side(case, rng, kind, (2, 5, 16), ("b", "s", 16))
        return case.constant(scale(rng)).constant(zero(rng, kind))
    image = name.endswith("Pool")
    _side(case, rng, kind, (2, 8, 6, 6) if image else (2, 5, 16),
          ("b", 8, 6, 6) if image else ("b", "s", 16))  # fmt: skip
    if name == "LeakyRelu":
        case.attributes["alpha"] = 0.2
    if name == "Softmax":
        case.attributes |= {"axis": -1, "opset": 13}
        case.constant(np.float32(1 / 256))
        return case.constant(np.array(0 if kind == "uint8" else -128, kind))
    if image:
        case.attributes["channels_last"] = last = int(rng.integers(2))
        if last:
            case.feeds["x0"] = np.ascontiguousarray(case.feeds["x0"].transpose(0, 2, 3, 1))
            case.shapes["x0"] = ("b", 6, 6, 8)
        if name == "AveragePool":
            case.attributes |= {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    return case.constant(scale(rng, of=0.02)).constant(zero(rng, kind))


def linear(rng: np.random.Generator) -> Case:
    """QuantizeLinear and DequantizeLinear of the domain."""
    kind = str(rng.choice(["uint8", "int8", "uint16", "int16"]))
    forth = rng.random() < 0.5
    case = Case("QuantizeLinear" if forth else "DequantizeLinear")
    value = normal(rng, 2, 5, 16) if forth else octets(rng, kind, 2, 5, 16)
    case.feed(value, ("b", 5, 16))
    shape = ()
    if rng.random() < 0.5:
        case.attributes["axis"] = axis = int(rng.choice([1, 2, -1]))
        shape = (5,) if axis == 1 else (16,)
    return case.constant(scale(rng, *shape)).constant(zero(rng, kind, *shape))
