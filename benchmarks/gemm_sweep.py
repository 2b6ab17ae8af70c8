"""Products x [M, K] @ w [K, N] of transformer shapes beside NumPy's BLAS, one table a precision.

    python benchmarks/gemm_sweep.py [--seconds 0.1] [--rows 1,4,13] [--precision f32,bf16]

Rates are of the fastest run, the call from Python included (about 20 us); shares are of the
measured float32 FMA peak and, for one row, which takes as long as reading w does, of the measured
read bandwidth.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import graphc
from graphc import bench
from graphc.targets import detect

ROWS = (1, 4, 13, 64, 384, 1024)
# (K, N): MiniLM, BERT, ViT-S, T5-small, SmolLM2, Llama of 1B
SHAPES = (
    (384, 384),
    (384, 1536),
    (1536, 384),
    (768, 768),
    (768, 3072),
    (3072, 768),
    (512, 1024),
    (576, 1536),
    (1536, 576),
    (2048, 2048),
    (2048, 8192),
    (8192, 2048),
)
_BYTES = {"f32": 4, "bf16": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.1, help="time of each cell")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--precision", default="f32,bf16")
    options = parser.parse_args()
    threads = detect.machine().cores
    peak, read = bench.peak(threads)
    print(f"{threads} threads, float32 FMA peak {peak:.0f} GFLOP/s, reads {read:.1f} GB/s")
    rows = tuple(int(text) for text in options.rows.split(","))
    for precision in options.precision.split(","):
        print(f"\n| {precision}: K x N | M | GFLOP/s | of peak | GB/s | of read | times BLAS |")
        print("|---|---|---|---|---|---|---|")
        for depth, width in SHAPES:
            for line in cells(depth, width, rows, precision, options.seconds, peak, read):
                print(line, flush=True)


def cells(
    depth: int,
    width: int,
    rows: tuple[int, ...],
    precision: str,
    seconds: float,
    peak: float,
    read: float,
) -> list[str]:
    """One line for each number of rows."""
    generator = np.random.default_rng(depth + width)
    weight = generator.standard_normal((depth, width), np.float32)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "product.onnx"
        save(source, weight)
        quantize = None if precision == "f32" else precision
        artifact = graphc.compile(
            source, output=Path(folder) / "m.gc", verify=False, quantize=quantize
        )
        with graphc.load(artifact.path) as model:
            for count in rows:
                x = generator.standard_normal((count, depth), np.float32)
                feeds = {"x": x}
                ours = fastest(lambda feeds=feeds: model.run(["y"], feeds), seconds)
                theirs = fastest(lambda x=x: x @ weight, seconds)
                rate = 2 * count * depth * width / ours / 1e9
                speed = _BYTES[precision] * depth * width / ours / 1e9
                lines.append(
                    f"| {depth} x {width} | {count} | {rate:.0f} | {rate / peak:.0%} "
                    f"| {speed:.1f} | {speed / read:.0%} | {theirs / ours:.2f} |"
                )
    return lines


def save(path: Path, weight: np.ndarray) -> None:
    """The ONNX model y = x @ weight for any number of rows."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in zip("xy", weight.shape, strict=True)
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([node], "product", ports[:1], ports[1:], values)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def fastest(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of the runs that fit."""
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
