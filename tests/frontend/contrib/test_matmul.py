"""Fused matrix products and block-quantised weights, against ONNX Runtime."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from contrib_models import Case, build, compare, compiled, normal

from graphc.errors import GraphcError

RNG = np.random.default_rng(7)


def test_fused_matmul(tmp_path: Path) -> None:
    cases = []
    for turn_a, turn_b, alpha in itertools.product((0, 1), (0, 1), (1.0, 0.25)):
        a, b = normal(RNG, 2, 3, 5, 4), normal(RNG, 3, 4, 6)
        a_shape = ("b", "h", 4, "s") if turn_a else ("b", "h", "s", 4)
        case = Case("FusedMatMul", {"transA": turn_a, "transB": turn_b, "alpha": alpha})
        case.feed(a.swapaxes(-1, -2) if turn_a else a, a_shape)
        cases.append(case.constant(b.swapaxes(-1, -2) if turn_b else b))
    for flags in itertools.product((0, 1), repeat=2):
        a, b = normal(RNG, 5, 2, 4), normal(RNG, 4, 2, 6)  # [m, batch, k] and [k, batch, n]
        names = ("transA", "transB")
        case = Case("FusedMatMul", {"transBatchA": 1, "transBatchB": 1,
                                    **dict(zip(names, flags, strict=True))})  # fmt: skip
        case.feed(a.transpose(2, 1, 0) if flags[0] else a)
        cases.append(case.feed(b.transpose(2, 1, 0) if flags[1] else b))
    cases.append(Case("TransposeMatMul", {"transB": 1}).feed(normal(RNG, 3, 4)).feed(
        normal(RNG, 6, 4)))  # fmt: skip
    cases.append(Case("FusedMatMul").feed(normal(RNG, 4)).feed(normal(RNG, 4, 6)))
    compare(cases, tmp_path)


def test_fused_gemm_and_convolution(tmp_path: Path) -> None:
    cases = []
    image, kernel = normal(RNG, 2, 4, 7, 6), normal(RNG, 8, 4, 3, 3)
    bias = normal(RNG, 8)
    activations = [("Relu", ()), ("Tanh", ()), ("Sigmoid", ()), ("LeakyRelu", (0.3,)),
                   ("HardSigmoid", (0.4, 0.3)), ("Clip", (-0.5, 0.7))]  # fmt: skip
    for number, (name, parameters) in enumerate(activations):
        window = {"pads": [1] * 4, "strides": [1 + number % 2] * 2, "kernel_shape": [3, 3]}
        case = Case("FusedConv", {"activation": name, **window})
        if parameters:
            case.attributes["activation_params"] = list(parameters)
        case.feed(image, ("n", 4, 7, 6)).constant(kernel).constant(bias if number % 3 else None)
        if number in (0, 2):
            case.feed(normal(RNG, 2, 8, 7, 6), ("n", 8, 7, 6))
        cases.append(case)
        if name != "Clip":
            case = Case("FusedGemm", {"activation": name, "alpha": 0.5, "beta": 2.0, "transB": 1})
            for key, value in zip(("alpha", "beta"), parameters, strict=False):
                case.attributes[f"activation_{key}"] = value
            case.feed(normal(RNG, 3, 4), ("n", 4)).constant(normal(RNG, 6, 4))
            cases.append(case.constant(normal(RNG, 6)))
    compare(cases, tmp_path)


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Along the last axis, the first value in the lowest bits; filled up with zeros."""
    per_byte = 8 // bits
    short = -values.shape[-1] % per_byte
    filled = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)])
    groups = filled.reshape(*values.shape[:-1], -1, per_byte).astype("uint32")
    return np.asarray((groups << (np.arange(per_byte, dtype="uint32") * bits)).sum(-1), "uint8")


def nbits(bits: int, size: int, inner: int, zeros: str, bias: bool, dtype: str, level: int) -> Case:
    rows, blocks = 24, -(-inner // size)
    q = RNG.integers(0, 1 << bits, (rows, blocks, size))
    zero = RNG.integers(0, 1 << bits, (rows, blocks))
    case = Case("MatMulNBits", {"bits": bits, "block_size": size, "K": inner, "N": rows,
                                "accuracy_level": level})  # fmt: skip
    case.feed(normal(RNG, 2, 3, inner, dtype=dtype), ("b", "s", inner))
    case.constant(packed(q, bits)).constant((normal(RNG, rows, blocks) / 9).astype(dtype))
    if zeros == "packed":
        case.constant(packed(zero, bits))
    elif zeros == "plain":
        case.constant((zero + 0.25).astype(dtype))
    else:
        case.constant(None)
    case.constant(None)
    return case.constant(normal(RNG, rows, dtype=dtype) if bias else None)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_matmul_nbits(tmp_path: Path, bits: int) -> None:
    choices = [(16, 96, "packed"), (32, 50, "plain"), (64, 96, ""), (128, 64, "packed"),
               (16, 50, "")]  # fmt: skip
    cases = []
    for number, (size, inner, zeros) in enumerate(choices):
        if bits == 8 and zeros == "plain":
            continue  # the CPU provider has no such kernel
        dtype = "float16" if number % 5 == 4 and bits == 4 else "float32"
        cases.append(nbits(bits, size, inner, zeros, bool(number % 2), dtype, number % 3 % 2))
    model = compare(cases, tmp_path, tolerance=1e-4)
    assert sum(data.dtype == np.uint8 for data in model.params.values()) >= len(cases)


def test_matmul_nbits_refuses(tmp_path: Path) -> None:
    for change in ({"bits": 3}, {"block_size": 24}, {"weight_prepacked": 1}, {"K": 80}):
        case = nbits(4, 32, 64, "packed", False, "float32", 0)
        case.attributes |= change
        with pytest.raises(GraphcError, match="MatMulNBits"):
            compiled(build([case])[0], tmp_path)


@pytest.mark.parametrize("bits", [4, 8])
def test_gather_block_quantized(tmp_path: Path, bits: int) -> None:
    cases = []
    for zeros, size, dtype in itertools.product((True, False), (16, 32), ("float32", "float16")):
        shape, axis = (9, 6, 80), 2
        blocks = [9, 6, -(-80 // size)]
        case = Case("GatherBlockQuantized", {"bits": bits, "block_size": size, "gather_axis": 0,
                                             "quantize_axis": axis})  # fmt: skip
        case.constant(packed(RNG.integers(0, 1 << bits, shape), bits))
        case.feed(RNG.integers(-9, 9, (2, 4)).astype("int64"), ("n", "s"))
        case.constant(normal(RNG, *blocks, dtype=dtype))
        if zeros:
            case.constant(packed(RNG.integers(0, 1 << bits, blocks), bits))
        cases.append(case)
    compare(cases, tmp_path)
