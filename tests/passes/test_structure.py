"""What is read off a graph: heads, masks, rotary embeddings, caches, norms, MLPs and FLOPs."""

from __future__ import annotations

from pathlib import Path

import architectures
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphc import frontend
from graphc.codegen import flops
from graphc.frontend.torch_export import load_program
from graphc.ir import Model
from graphc.passes import pipeline
from graphc.passes.structure import AttentionInfo, structure
from graphc.work import value

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def toy(name: str) -> Model:
    """A toy architecture after the graph passes."""
    (found,) = (each for each in architectures.ARCHITECTURES if each.name == name)
    return pipeline.graph(load_program(architectures.export(found)), None)


def test_a_decoder_with_grouped_heads_and_a_window() -> None:
    model = toy("Mistral")
    found = structure(model)
    assert found.attention == (
        AttentionInfo(2, "GQA", False, 4, 2, 8, 8, "causal window 8, padding", "halves", "none"),
    )
    assert (found.causal, found.norms, found.mlps) == ("yes", {"rms_norm": 5}, {"gated silu": 2})
    work = flops.count(model).record()
    batch, sequence = 3, 11
    projections = 2 * (32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48) + 32 * 97
    attention = 2 * 4 * sequence * 16
    expected = 2 * batch * sequence * (projections + attention)
    sizes = {"input_ids_0": batch, "input_ids_1": sequence, "batch": batch, "sequence": sequence}
    assert value(work, sizes) == expected


def test_an_encoder_and_a_decoder() -> None:
    found = structure(toy("T5"))
    assert [(info.cross, info.mask) for info in found.attention] == [
        (False, "padding, position bias"),
        (False, "causal, position bias"),
        (True, "padding"),
    ]
    assert found.causal == "partly" and found.mlps == {"plain relu": 4}


def attention(path: Path, *, remembered: bool) -> Path:
    """One layer of two heads of 4 over x [batch, new, 8], with or without past keys and values."""
    draw = np.random.default_rng(0).standard_normal
    weights = {name: draw((8, 8)).astype(np.float32) for name in ("wq", "wk", "wv")}
    shapes = {"to": np.array([0, 0, 2, 4], np.int64), "root": np.array(0.5, np.float32)}
    nodes = []
    for name in "qkv":
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}1"]),
            helper.make_node("Reshape", [f"{name}1", "to"], [f"{name}2"]),
            helper.make_node("Transpose", [f"{name}2"], [f"{name}3"], perm=[0, 2, 1, 3]),
        ]
    for name in "kv":
        old = [f"past_{name}"] if remembered else []
        nodes.append(helper.make_node("Concat", [*old, f"{name}3"], [name], axis=2))
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q3", "kt"], ["s"]),
        helper.make_node("Mul", ["s", "root"], ["scaled"]),
        helper.make_node("Softmax", ["scaled"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["batch", "new", 8])]
    if remembered:
        past = ["batch", 2, "past", 4]
        inputs += [helper.make_tensor_value_info(f"past_{n}", FLOAT, past) for n in "kv"]
    graph = helper.make_graph(
        nodes,
        "attention",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in ("y", "k", "v")],
        [numpy_helper.from_array(a, name) for name, a in {**weights, **shapes}.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return path


@pytest.mark.parametrize("remembered", [True, False])
def test_where_keys_are_kept(tmp_path: Path, remembered: bool) -> None:
    path = attention(tmp_path / "m.onnx", remembered=remembered)
    model = pipeline.graph(frontend.load(path), None)
    (info,) = structure(model).attention
    cache = "past_key_values" if remembered else "none"
    assert info == AttentionInfo(1, "MHA", False, 2, 2, 4, 4, "none", "", cache)
    work = flops.count(model).record()
    sizes = {"batch": 2, "new": 3, "past": 5}
    keys = 3 + 5 * remembered
    assert value(work, sizes) == 2 * 2 * 3 * (3 * 64 + 2 * 8 * keys)
    assert value(work, {"batch": 2, "new": 3}) == (None if remembered else value(work, sizes))
