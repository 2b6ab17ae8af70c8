"""Measures real models beside ONNX Runtime and OpenVINO; writes the README's table of figures.

    pip install openvino
    python benchmarks/figures.py [--seconds 4] [--print]

All sides run the same inputs on the same threads in the same process, in turns; figures are
medians. Absolute times belong to the machine named under the table; compare the ratios.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import readme
from onnxruntime import quantization

import graphc
from graphc import bench, peers, testing, work
from graphc.targets import detect

sys.path.insert(0, str(readme.ROOT / "tests"))
from support import MODELS, Models

TEXT = ((1, 16), (1, 128), (8, 128), (1, 512))
HEAD = (
    "| model | precision | shape | graphc ms | ONNX Runtime ms | OpenVINO ms "
    "| times faster than the faster | of the FMA peak |"
)


@dataclass(frozen=True)
class Subject:
    """A model at one precision, and the values of its symbolic dimensions."""

    name: str
    title: str
    precision: str
    dims: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]


SUBJECTS = (
    Subject("minilm", "MiniLM-L6", "float32", ("batch", "sequence"), TEXT),
    Subject("minilm", "MiniLM-L6", "bf16", ("batch", "sequence"), TEXT),
    Subject("minilm", "MiniLM-L6", "int8", ("batch", "sequence"), TEXT),
    Subject("albert", "ALBERT", "float32", ("batch", "sequence"), TEXT[:2]),
    Subject("vit", "ViT-S/14", "float32", ("batch_size",), ((1,),)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="time of each side of each row")
    parser.add_argument("--print", action="store_true", help="leave README.md as it is")
    options = parser.parse_args()
    table = "\n".join(rows(options.seconds))
    print(table)
    if not options.print:
        readme.replace("figures", table)


def rows(seconds: float) -> list[str]:
    """The Markdown table, and below it what it was measured on."""
    lines = [HEAD, "|---" * 8 + "|"]
    ratios: dict[str, list[float]] = {}
    cores = detect.machine().cores
    peak, bandwidth = bench.peak(cores)
    models = Models(MODELS)
    for subject in SUBJECTS:
        source = models.path(subject.name)
        with tempfile.TemporaryDirectory() as folder:
            for line, ratio in _measured(subject, source, Path(folder), cores, seconds, peak):
                ratios.setdefault(f"{subject.title} {subject.precision}", []).append(ratio)
                lines.append(line)
                print(line, file=sys.stderr)
    means = ", ".join(f"{name} {_mean(each):.2f}" for name, each in ratios.items())
    lines += [
        "",
        f"Geometric means: {means}. {cores} threads on {readme.processor()} (float32 FMA peak "
        f"{peak:.0f} GFLOP/s, reads {bandwidth:.0f} GB/s, both measured), ONNX Runtime "
        f"{onnxruntime.__version__}, OpenVINO {_openvino_version()}; int8: dynamic activations in "
        "graphc and ONNX Runtime, a QDQ file in OpenVINO. `python benchmarks/figures.py` measures "
        "it again.",
    ]
    return lines


def _measured(
    subject: Subject, source: Path, folder: Path, cores: int, seconds: float, peak: float
) -> Iterator[tuple[str, float]]:
    """A line of the table and the ratio in it, for each size."""
    scheme = None if subject.precision == "float32" else subject.precision
    artifact = graphc.compile(source, output=folder / "m.gc", verify=False, quantize=scheme)
    with graphc.load(artifact.path, threads=cores) as loaded:
        others = _others(subject.precision, source, loaded, folder, cores)
        formula = loaded.functions["main"].work
        for sizes in subject.sizes:
            dims = dict(zip(subject.dims, sizes, strict=True))
            feeds = testing.random_inputs(loaded.inputs, dims)
            sides: dict[str, Callable[[], object]] = {
                "graphc": functools.partial(loaded.run, None, feeds)
            }
            sides |= {name: functools.partial(run, feeds) for name, run in others.items()}
            times = {side.name: side.median for side in bench.measure(sides, seconds)}
            best = min(value for name, value in times.items() if name != "graphc")
            flops = None if formula is None else work.value(formula, dims)
            share = ""
            if subject.precision == "float32" and flops is not None:
                share = f"{flops / times['graphc'] / (peak * 1e9):.0%}"
            cells = [f"{1e3 * times[name]:.1f}" if name in times else "" for name in COLUMNS]
            shape = " x ".join(map(str, sizes))
            line = " | ".join(
                [
                    "",
                    subject.title,
                    subject.precision,
                    shape,
                    *cells,
                    f"{best / times['graphc']:.2f}",
                ]
            )
            yield f"{line.strip()} | {share} |", best / times["graphc"]


COLUMNS = ("graphc", "onnxruntime", "openvino")


def _others(
    precision: str, source: Path, loaded: Any, folder: Path, cores: int
) -> dict[str, Callable[[Mapping[str, Any]], object]]:
    """The peers at this precision; ONNX Runtime has no bf16 on CPUs."""
    if precision == "float32":
        return {name: peers.make(name, source, cores) for name in COLUMNS[1:]}
    if precision == "bf16":
        return {"openvino": peers.make("openvino-bf16", source, cores)}
    dynamic, static = folder / "dynamic.onnx", folder / "static.onnx"
    quantization.quantize_dynamic(source, dynamic, per_channel=True)
    kept = dict.fromkeys((dim for port in loaded.inputs for dim in port.shape), 32)
    sizes = {str(name): value for name, value in kept.items() if not isinstance(name, int)}
    quantization.quantize_static(
        source, static, _Drawn(loaded, sizes), per_channel=True, op_types_to_quantize=["MatMul"]
    )
    return {
        "onnxruntime": peers.make("onnxruntime", dynamic, cores),
        "openvino": peers.make("openvino", static, cores),
    }


class _Drawn(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Random inputs: ranges that are good enough for a file whose speed is measured."""

    def __init__(self, loaded: Any, sizes: Mapping[str, int]) -> None:
        self._sets = iter([testing.random_inputs(loaded.inputs, sizes, seed) for seed in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._sets, None)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _openvino_version() -> str:
    import openvino

    return str(openvino.__version__).partition("-")[0]


if __name__ == "__main__":
    main()
