"""Compiles a synthetic model with external data and compares the memory it takes with its weights.

    python benchmarks/large_model.py [--gigabytes 3]

Exit status 1 when the peak (resident pages of the compiling process, mapped files included)
exceeds 1.3 times the weights.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

WIDTH, INNER = 2048, 8192
BLOCK_BYTES = 2 * 4 * WIDTH * INNER
ALLOWED = 1.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=3.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write(folder, round(options.gigabytes * 1e9 / BLOCK_BYTES))
        peak = compile_and_watch(folder)
    print(f"weights {size / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB: {peak / size:.2f} times")
    return int(peak > ALLOWED * size)


def write(folder: Path, blocks: int) -> int:
    """model.onnx and weights.bin: residual blocks x + relu(x A) B; returns the weights' bytes."""
    random = np.random.default_rng(0)
    nodes, tensors, x, offset = [], [], "x", 0
    with (folder / "weights.bin").open("wb") as file:
        for block in range(blocks):
            for name, shape in ((f"a{block}", (WIDTH, INNER)), (f"b{block}", (INNER, WIDTH))):
                value = random.standard_normal(shape, dtype=np.float32) * np.float32(0.01)
                file.write(value.data)
                tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
                tensor.data_location = TensorProto.EXTERNAL
                place = {"location": "weights.bin", "offset": offset, "length": value.nbytes}
                for key, entry in place.items():
                    tensor.external_data.add(key=key, value=str(entry))
                tensors.append(tensor)
                offset += value.nbytes
            nodes += [
                helper.make_node("MatMul", [x, f"a{block}"], [f"h{block}"]),
                helper.make_node("Relu", [f"h{block}"], [f"r{block}"]),
                helper.make_node("MatMul", [f"r{block}", f"b{block}"], [f"m{block}"]),
                helper.make_node("Add", [x, f"m{block}"], [f"x{block}"]),
            ]
            x = f"x{block}"
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "large", ports[:1], ports[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return offset


def compile_and_watch(folder: Path) -> int:
    """The highest resident set of `graphc compile`, in bytes."""
    command = [sys.executable, "-m", "graphc", "compile", "model.onnx", "-o", "model.gc"]
    environment = {**os.environ, "GRAPHC_NO_CACHE": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit("graphc compile failed")
    return usage.ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
