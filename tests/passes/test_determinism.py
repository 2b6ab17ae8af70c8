"""Kernels, their names and their arguments' order are the same in every process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tiny_models
from onnx import helper

WORKER = Path(__file__).with_name("determinism_worker.py")


def strided_convolutions(path: Path) -> Path:
    """Dimensions such as (height - 1) // 2 + 1, which occur inside of expressions only."""
    nodes, weights, last = [], [], "x"
    for k in range(4):
        nodes += [
            helper.make_node("Conv", [last, f"w{k}"], [f"c{k}"], strides=[2, 2], pads=[1] * 4),
            helper.make_node("Relu", [f"c{k}"], [f"r{k}"]),
        ]
        weights.append(tiny_models.weight(f"w{k}", 8, 8, 3, 3, seed=k))
        last = f"r{k}"
    inputs = [tiny_models.value("x", ["batch", 8, "height", "width"])]
    outputs = [tiny_models.value(last, ["batch", 8, "h", "w"])]
    return tiny_models.save(
        path, helper.make_graph(nodes, "convolutions", inputs, outputs, weights)
    )


def test_lowering_does_not_depend_on_addresses(tmp_path: Path) -> None:
    source = strided_convolutions(tmp_path / "convolutions.onnx")
    texts = {
        subprocess.run(
            [sys.executable, WORKER, source],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(texts) == 1 and "gemm" in texts.pop()
