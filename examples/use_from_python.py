"""Runs an artifact from Python; only graphc's loader and NumPy are imported, no compiler.

Try it after `make demo`: .venv/bin/python examples/use_from_python.py paraphrase-MiniLM-L3-v2.gc
"""

from __future__ import annotations

import sys

import graphc


def main() -> None:
    model = graphc.load(sys.argv[1])
    for port in (*model.inputs, *model.outputs):
        print(port.name, port.dtype, port.shape)
    for name, array in model(**model.example_inputs()).items():  # or your own arrays
        print(name, array.dtype, array.shape, array.ravel()[:4])
    print(sorted(m for m in ("tvm", "onnx", "onnxruntime", "torch") if m in sys.modules))


if __name__ == "__main__":
    main()
