"""Instructions of the n-bit kernels against their references, at the ends of the ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.cpu import build_module
from graphc.codegen.instructions import convert, dot_codes
from graphc.codegen.instructions.instruction import imported, store_vector, vector
from graphc.targets import load as targets

TARGETS = ["x86-64-v2", "x86-64-v3", "x86-64-v3-avxvnni", "x86-64-v4", "x86-64-v4-vnni"]
START = [tir.const(0)]


def usable(name: str) -> Any:
    target = targets.get(name)
    if not target.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {name}")
    return target


def dot_kernel(target: Any, bits: int) -> Any:
    lanes = target.lanes(32)
    acc, w, x = (
        tirx.decl_buffer([count], "int32", name=text)
        for count, text in ((lanes, "acc"), (lanes, "w"), (1, "x"))
    )
    instruction = dot_codes.dot_codes(target, lanes, bits)
    with tir.function("dot", [acc, w, x], "test") as build, imported([instruction]):
        result = instruction(vector(acc, START, lanes), vector(w, START, lanes), tir.load(x, START))
        store_vector(acc, START, lanes, result)
    return build.get()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", TARGETS)
def test_dot_codes(name: str, bits: int) -> None:
    target = usable(name)
    lanes = target.lanes(32)
    module = build_module({"dot": dot_kernel(target, bits)}, target)
    random, most = np.random.default_rng(), (1 << bits) - 1
    for code, value in [(most, -128), (most, 127), (0, 5), (None, None)]:
        codes = random.integers(0, most + 1, (lanes, 4)).astype(np.uint8)
        codes = codes if code is None else np.full_like(codes, code)
        values = random.integers(-128, 128, 4).astype(np.int8)
        values = values if value is None else np.full_like(values, value)
        before = random.integers(-1000, 1000, lanes, dtype=np.int32)
        found = tvm.runtime.tensor(before)
        words = (codes.view(np.int32).reshape(lanes), values.view(np.int32))
        module["dot"](found, *(tvm.runtime.tensor(word) for word in words))
        expected = dot_codes.reference(before, codes, values)
        np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize(
    ("name", "bits", "mnemonic"),
    [("arm-dotprod", 4, "	sdot"), ("arm-i8mm", 4, "	usdot"), ("arm-i8mm", 8, "	usdot")],
)
def test_arm_uses_its_instruction(name: str, bits: int, mnemonic: str) -> None:
    target = targets.get(name)
    assembly = build_module({"dot": dot_kernel(target, bits)}, target).inspect_source("asm")
    assert mnemonic in assembly


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_halves(name: str) -> None:
    target = usable(name)
    lanes = target.lanes(32)
    instruction = convert.halves(lanes)
    words = tirx.decl_buffer([lanes // 2], "int32", name="words")
    out = tirx.decl_buffer([lanes], "float32", name="out")
    with tir.function("halves", [words, out], "test") as build, imported([instruction]):
        store_vector(out, START, lanes, instruction(vector(words, START, lanes // 2)))
    module = build_module({"halves": build.get()}, target)
    values = np.random.default_rng().standard_normal(lanes).astype(np.float16)
    values[:3] = 0, 6e-8, 65504  # the smallest and the largest
    found = tvm.runtime.tensor(np.zeros(lanes, np.float32))
    module["halves"](tvm.runtime.tensor(values.view(np.int32)), found)
    np.testing.assert_array_equal(found.numpy(), convert.halves_reference(values.view(np.int32)))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_round_bytes(lanes: int) -> None:
    instruction = convert.round_bytes(lanes)
    x = tirx.decl_buffer([lanes], "float32", name="x")
    out = tirx.decl_buffer([lanes // 4], "int32", name="out")
    with tir.function("round", [x, out], "test") as build, imported([instruction]):
        value = instruction(vector(x, START, lanes))
        if lanes == 4:
            tir.store(out, START, value)
        else:
            store_vector(out, START, lanes // 4, value)
    module = build_module({"round": build.get()}, targets.get("host"))
    values = np.random.default_rng().uniform(-127, 127, lanes).astype(np.float32)
    values[:4] = 0.5, 1.5, -127, 127
    found = tvm.runtime.tensor(np.zeros(lanes // 4, np.int32))
    module["round"](tvm.runtime.tensor(values), found)
    np.testing.assert_array_equal(found.numpy(), convert.round_bytes_reference(values))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_reductions(lanes: int) -> None:
    instructions = [convert.largest(lanes), convert.total(lanes)]
    x = tirx.decl_buffer([lanes], "float32", name="x")
    out = tirx.decl_buffer([2], "float32", name="out")
    with tir.function("reduce", [x, out], "test") as build, imported(instructions):
        for at, instruction in enumerate(instructions):
            tir.store(out, [tir.const(at)], instruction(vector(x, START, lanes)))
    module = build_module({"reduce": build.get()}, targets.get("host"))
    values = np.random.default_rng().standard_normal(lanes).astype(np.float32)
    found = tvm.runtime.tensor(np.zeros(2, np.float32))
    module["reduce"](tvm.runtime.tensor(values), found)
    expected = [np.abs(values).max(), values.sum(dtype=np.float64)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
