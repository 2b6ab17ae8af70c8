"""The four-products instruction of every target against its reference, at the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.cpu import build_module
from graphc.codegen.instructions import dot
from graphc.codegen.instructions.instruction import imported, store_vector, vector
from graphc.targets import load as targets

TARGETS = ["x86-64-v2", "x86-64-v3", "x86-64-v3-avxvnni", "x86-64-v4", "x86-64-v4-vnni"]


def kernel(target: object, lanes: int) -> tirx.PrimFunc:
    acc = tirx.decl_buffer([lanes], "int32", name="acc")
    a = tirx.decl_buffer([1], "int32", name="a")
    b = tirx.decl_buffer([lanes], "int32", name="b")
    instruction = dot.dot(target)
    with tir.function("dot", [acc, a, b], "test") as build, imported([instruction]):
        start = [tir.const(0)]
        result = instruction(vector(acc, start, lanes), tir.load(a, start), vector(b, start, lanes))
        store_vector(acc, start, lanes, result)
    return build.get()


@pytest.mark.parametrize("name", TARGETS)
def test_dot(name: str) -> None:
    target = targets.get(name)
    if not target.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {name}")
    lanes = dot.lanes(target)
    module = build_module({"dot": kernel(target, lanes)}, target)
    random = np.random.default_rng(lanes)
    cases = [(255, -128), (255, 127), (0, 5), (None, None)]
    for high, signed in cases:
        a = (
            random.integers(0, 256, 4, dtype=np.uint8)
            if high is None
            else np.full(4, high, "uint8")
        )
        b = random.integers(-128, 128, (lanes, 4), dtype=np.int8)
        b = b if signed is None else np.full_like(b, signed)
        acc = random.integers(-1000, 1000, lanes, dtype=np.int32)
        found = tvm.runtime.tensor(acc)
        packed = (a.view(np.int32), b.view(np.int32).reshape(lanes))
        module["dot"](found, *(tvm.runtime.tensor(x) for x in packed))
        np.testing.assert_array_equal(found.numpy(), dot.reference(acc, a, b))


@pytest.mark.parametrize("name", ["x86-64-v3-avxvnni", "x86-64-v4-vnni"])
def test_vnni_is_one_instruction(name: str) -> None:
    target = targets.get(name)
    module = build_module({"dot": kernel(target, dot.lanes(target))}, target)
    assert module.inspect_source("asm").count("vpdpbusd") == 1
