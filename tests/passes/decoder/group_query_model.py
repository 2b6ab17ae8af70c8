"""A small language model of GroupQueryAttention nodes over past keys and values, as ONNX."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HIDDEN, HEADS, GROUPS, SIZE, LAYERS, ROWS = 61, 32, 4, 2, 16, 2, 128
_MICROSOFT = "com.microsoft"


def build(path: Path, *, window: int = -1, softcap: float = 0.0) -> None:
    """Writes the model; masks say how many tokens there are, as onnxruntime-genai exports it."""
    random = np.random.default_rng(5)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        weights[name] = (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)
        return name

    def node(kind: str, inputs: list[str], output: str, domain: str = "", **more: object) -> str:
        outputs = [output, *more.pop("also", [])]  # type: ignore[misc]
        nodes.append(helper.make_node(kind, inputs, outputs, output, domain=domain, **more))
        return output

    angles = np.arange(ROWS)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    weights["cos"], weights["sin"] = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
    weights["one"], weights["axis"] = np.int64(1), np.asarray([1], np.int64)
    total = node("ReduceSum", ["attention_mask", "axis"], "total", keepdims=0)
    last = node("Sub", [total, "one"], "last")
    lengths = node("Cast", [last], "lengths", to=TensorProto.INT32)
    shape = node("Shape", ["attention_mask"], "shape")
    width = node("Gather", [shape, "one"], "width")
    columns = node("Cast", [width], "columns", to=TensorProto.INT32)
    x = node("Gather", [weight("embedding", VOCABULARY, HIDDEN), "input_ids"], "x")
    for layer in range(LAYERS):
        q = node("MatMul", [x, weight(f"wq{layer}", HIDDEN, HEADS * SIZE)], f"q{layer}")
        k, v = (
            node("MatMul", [x, weight(f"w{c}{layer}", HIDDEN, GROUPS * SIZE)], f"{c}{layer}")
            for c in "kv"
        )
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        attended = node(
            "GroupQueryAttention", [q, k, v, *past, lengths, columns, "cos", "sin"],
            f"a{layer}", _MICROSOFT, also=[f"present.{layer}.{kind}" for kind in ("key", "value")],
            num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, local_window_size=window,
            softcap=softcap,
        )  # fmt: skip
        out = node("MatMul", [attended, weight(f"wo{layer}", HEADS * SIZE, HIDDEN)], f"o{layer}")
        x = node("Add", [x, out], f"x{layer}")
    node("MatMul", [x, weight("head", HIDDEN, VOCABULARY)], "logits")
    cache, grown = ["batch", GROUPS, "past", SIZE], ["batch", GROUPS, "all", SIZE]
    kinds = [(f"{layer}.{kind}") for layer in range(LAYERS) for kind in ("key", "value")]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "all"]),
        *(_floats(f"past_key_values.{kind}", cache) for kind in kinds),
    ]
    outputs = [
        _floats("logits", ["batch", "sequence", VOCABULARY]),
        *(_floats(f"present.{kind}", grown) for kind in kinds),
    ]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(_MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def _floats(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def full(path: Path, tokens: np.ndarray) -> np.ndarray:
    """All logits of one sequence by ONNX Runtime, from an empty cache."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {
        port.name: np.zeros((1, GROUPS, 0, SIZE), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("past")
    }
    feeds |= {"input_ids": tokens[None], "attention_mask": np.ones_like(tokens[None])}
    return np.asarray(session.run(["logits"], feeds)[0][0])
