"""Decoders with and without a past in one file: a function for each, weights shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flow_models
import numpy as np
import onnx
import onnxruntime
import pytest

import graphc
from graphc.frontend import load

WIDTH, WORDS = 8, 20
node, port = flow_models.node, flow_models.port


def _branch(prefix: str, with_past: bool) -> Any:
    """Attention over the past and the new tokens, or over the new ones only."""
    past = ["past_key_values.0.key"] if with_past else []
    return flow_models.graph(
        [
            node("MatMul", ["h", "wq"], [f"{prefix}q"]),
            node("MatMul", ["h", "wk"], [f"{prefix}new"]),
            node("Concat", [*past, f"{prefix}new"], [f"{prefix}k"], axis=1),
            node("Transpose", [f"{prefix}k"], [f"{prefix}t"], perm=[0, 2, 1]),
            node("MatMul", [f"{prefix}q", f"{prefix}t"], [f"{prefix}s"]),
            node("Softmax", [f"{prefix}s"], [f"{prefix}p"], axis=-1),
            node("MatMul", [f"{prefix}p", f"{prefix}k"], [f"{prefix}o"]),
            node("MatMul", [f"{prefix}o", "wo"], [f"{prefix}y"]),
        ],
        [],
        [port(f"{prefix}y", 1), port(f"{prefix}k", 1)],
    )


def _merged() -> Any:
    return flow_models.model(
        [
            node("Gather", ["table", "input_ids"], ["h"]),
            node(
                "If",
                ["use_cache_branch"],
                ["logits", "present.0.key"],
                then_branch=_branch("past.", True),
                else_branch=_branch("first.", False),
            ),
        ],
        [
            port("input_ids", 7, ["batch", "sequence"]),
            port("past_key_values.0.key", 1, ["batch", "past", WIDTH]),
            port("use_cache_branch", 9, [1]),
        ],
        [
            port("logits", 1, ["batch", "sequence", WORDS]),
            port("present.0.key", 1, ["batch", "total", WIDTH]),
        ],
        table=flow_models.floats(WORDS, WIDTH),
        wq=flow_models.floats(WIDTH, WIDTH),
        wk=flow_models.floats(WIDTH, WIDTH),
        wo=flow_models.floats(WIDTH, WORDS),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("merged") / "decoder_model_merged.onnx"
    onnx.save(_merged(), file)
    return file


def test_a_function_for_each_choice(path: Path) -> None:
    model = load(path)
    names = {name: [p.name for p in made.inputs] for name, made in model.exported.items()}
    assert names == {
        "main": ["input_ids"],
        "main_with_past": ["input_ids", "past_key_values.0.key"],
    }
    assert set(model.params) == {"table", "wq", "wk", "wo"}


def test_steps_with_the_past_continue_the_first_one(path: Path, tmp_path: Path) -> None:
    artifact = graphc.compile(path, output=tmp_path / "merged.gc")  # verifies both functions
    labels = [case["label"] for case in artifact.manifest.numerics["cases"]]
    assert "main: odd" in labels and "main_with_past: odd" in labels
    module = graphc.load(artifact.path, threads=2)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    random = np.random.default_rng()
    tokens = random.integers(0, WORDS, (2, 7))
    logits, past = module.run(None, {"input_ids": tokens[:, :4]})
    for at in range(4, 7):
        feeds = {"input_ids": tokens[:, at : at + 1], "past_key_values.0.key": past}
        want = session.run(None, {**feeds, "use_cache_branch": np.array([True])})
        logits, past = module.run(None, feeds, "main_with_past")
        np.testing.assert_allclose(logits, want[0], atol=1e-5)
        np.testing.assert_allclose(past, want[1], atol=1e-5)
