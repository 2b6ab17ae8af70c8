"""GroupQueryAttention with its cache, step by step, against ONNX Runtime and numpy."""

from __future__ import annotations

from pathlib import Path

import attention_cases
import numpy as np
import onnx
import pytest
from contrib_models import DOMAIN, Case, build, compare, compiled, normal, run
from onnx import TensorProto, helper
from relax_vm import reference

from graphc.codegen.plan import CheckIndices
from graphc.errors import GraphcError

RNG = np.random.default_rng(10)
HEADS, GROUPS, SIZE = 4, 2, 16


def test_against_onnx_runtime(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    compare([attention_cases.group_query(rng) for _ in range(2)], tmp_path)


def decoder() -> onnx.ModelProto:
    """The lengths come from the attention mask, as in exported decoders."""
    node = helper.make_node
    nodes = [
        node("ReduceSum", ["mask", "one"], ["sums"], keepdims=0),
        node("Sub", ["sums", "one"], ["less"]),
        node("Cast", ["less"], ["seqlens"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["shape"]),
        node("Gather", ["shape", "first"], ["length"]),
        node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        node("GroupQueryAttention",
             ["qkv", "", "", "past_k", "past_v", "seqlens", "total", "cos", "sin"],
             ["y", "present_k", "present_v"], domain=DOMAIN, num_heads=HEADS,
             kv_num_heads=GROUPS, do_rotary=1, local_window_size=5),
    ]  # fmt: skip
    width = (HEADS + 2 * GROUPS) * SIZE
    cache = ["batch", GROUPS, "past_sequence_length", SIZE]
    inputs = [
        helper.make_tensor_value_info(
            "qkv", TensorProto.FLOAT, ["batch", "sequence_length", width]
        ),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "total_length"]),
        helper.make_tensor_value_info("past_k", TensorProto.FLOAT, cache),
        helper.make_tensor_value_info("past_v", TensorProto.FLOAT, cache),
    ]
    angles = np.arange(40)[:, None] / 10000 ** (np.arange(SIZE // 2) * 2 / SIZE)
    weights = {"one": np.array([1]), "first": np.array(1), "cos": np.cos(angles).astype("float32"),
               "sin": np.sin(angles).astype("float32")}  # fmt: skip
    outputs = [onnx.ValueInfoProto(name=name) for name in ("y", "present_k", "present_v")]
    graph = helper.make_graph(
        nodes, "decoder", inputs, outputs,
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("capacity", [0, 12])
def test_decoding_step_by_step(tmp_path: Path, capacity: int) -> None:
    """Caches that grow, and buffers of fixed size that are read up to the tokens so far."""
    model = decoder()
    imported, runner = compiled(model, tmp_path, past_sequence_length=(0, None))
    checks = [step for step in runner.plan.steps if isinstance(step, CheckIndices)]
    assert checks, "seqlens_k is not checked"
    names = [dim.name for dim in imported.signatures["main"].dims]
    assert names == ["batch", "sequence_length", "total_length", "past_sequence_length"]
    caches = [np.zeros((1, GROUPS, capacity, SIZE), "float32")] * 2
    done = 0
    for length in (4, 1, 1, 3):
        width = (HEADS + 2 * GROUPS) * SIZE
        feeds = {
            "qkv": normal(RNG, 1, length, width),
            "mask": np.ones((1, done + length), "int64"),
            "past_k": caches[0],
            "past_v": caches[1],
        }
        got, want = run(runner, feeds), reference(model, feeds)
        done += length
        np.testing.assert_allclose(got[0], want[0], rtol=2e-5, atol=2e-5)
        for ours, theirs in zip(got[1:], want[1:], strict=True):
            assert ours.shape == theirs.shape == (1, GROUPS, max(done, capacity), SIZE)
            np.testing.assert_allclose(ours[:, :, :done], theirs[:, :, :done], atol=1e-5)
        caches = got[1:]


def test_half_precision_both_directions_and_padded_chunks(tmp_path: Path) -> None:
    cases = []
    for dtype in ("float16", "float32"):
        case = Case("GroupQueryAttention", {"num_heads": HEADS, "kv_num_heads": GROUPS})
        if dtype == "float32":
            case.attributes["causal"] = 0
        case.outputs = 3
        case.feed(normal(RNG, 2, 3, HEADS * SIZE, dtype=dtype), ("b", "s", HEADS * SIZE))
        for _ in range(2):
            case.feed(normal(RNG, 2, 3, GROUPS * SIZE, dtype=dtype), ("b", "s", GROUPS * SIZE))
        case.constant(None).constant(None)
        case.feed(np.array([2, 2], "int32"), ("b",)).constant(np.array(3, "int32"))
        cases.append(case)
    # Chunks of 3 rows, of which 1 and 3 are tokens, behind 5 and 2 tokens in a buffer of 12.
    rows, tokens = np.array([1, 3], "int32"), np.array([6, 5], "int32")
    case = Case("GroupQueryAttention", {"num_heads": HEADS, "kv_num_heads": GROUPS}, outputs=3)
    case.feed(normal(RNG, 2, 3, HEADS * SIZE), ("b", "s", HEADS * SIZE))
    for _ in range(2):
        case.feed(normal(RNG, 2, 3, GROUPS * SIZE), ("b", "s", GROUPS * SIZE))
    for _ in range(2):
        case.feed(normal(RNG, 2, GROUPS, 12, SIZE), ("b", GROUPS, 12, SIZE))
    case.feed(tokens - 1, ("b",)).constant(np.array(12, "int32"))
    for _ in range(9):
        case.constant(None)
    case.feed(rows, ("b",))
    case.kept[0] = (np.arange(3) < rows[:, None])[:, :, None]
    case.kept[1] = case.kept[2] = (np.arange(12) < tokens[:, None])[:, None, :, None]
    compare([*cases, case], tmp_path)


def test_normalised_heads(tmp_path: Path) -> None:
    """ONNX Runtime has q_norm_weight on GPUs only: compared with normalising before."""
    weights = [normal(RNG, SIZE), normal(RNG, SIZE)]
    plain = Case("GroupQueryAttention", {"num_heads": HEADS, "kv_num_heads": GROUPS})
    normed = Case("GroupQueryAttention", {**plain.attributes, "qk_norm_epsilon": 1e-5})
    q, k, v = (normal(RNG, 2, 3, n * SIZE) for n in (HEADS, GROUPS, GROUPS))
    for case in (plain, normed):
        for number, x in enumerate((q, k, v)):
            if case is plain and number < 2:
                wide = x.reshape(2, 3, -1, SIZE).astype("float64")
                root = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
                x = (wide / root * weights[number]).reshape(x.shape).astype("float32")
            case.feed(x, ("b", "s", x.shape[-1]))
        case.constant(None).constant(None)
        case.feed(np.array([2, 2], "int32"), ("b",)).constant(np.array(3, "int32"))
    for _ in range(7):
        normed.constant(None)
    normed.constant(weights[0]).constant(weights[1])
    model, feeds = build([plain, normed])
    want, got = run(compiled(model, tmp_path)[1], feeds)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    "change",
    [{"sliding_window_cache": 1}, {"k_quant_type": "PER_TENSOR"}, {"qk_output": 1}, {"news": 1},
     {"kv_num_heads": 3}, {"softcap": -1.0}, {"local_window_size": 0}],
)  # fmt: skip
def test_refuses_with_a_reason(tmp_path: Path, change: dict[str, object]) -> None:
    case = attention_cases.group_query(np.random.default_rng(2))
    case.attributes |= change
    with pytest.raises(GraphcError, match="GroupQueryAttention node 'n0_node'"):
        compiled(build([case])[0], tmp_path)
