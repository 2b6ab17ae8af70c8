"""Measures real models beside ONNX Runtime and writes the table of figures into README.md.

    python benchmarks/figures.py [--seconds 5] [--print]

Both sides run the same inputs on the same threads in the same process, in turns; figures are
medians. Absolute times belong to the machine named under the table; compare the ratios.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnxruntime

import graphc
from graphc import bench
from graphc.targets import detect

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support import MODELS, Models  # noqa: E402

BEGIN, END = "<!-- generated: figures -->", "<!-- end of generated figures -->"
TEXT = ((1, 16), (1, 128), (8, 128), (1, 512))


@dataclass(frozen=True)
class Subject:
    """A model, how the table calls it, and the values of its symbolic dimensions."""

    name: str
    title: str
    dims: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]


SUBJECTS = (
    Subject("minilm", "MiniLM-L6, BERT encoder", ("batch", "sequence"), TEXT),
    Subject("albert", "ALBERT, 12 shared layers", ("batch", "sequence"), TEXT[:2]),
    Subject("vit", "ViT-S/14 with a saliency head", ("batch_size",), ((1,), (4,))),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="time of each side of each row")
    parser.add_argument("--print", action="store_true", help="leave README.md as it is")
    options = parser.parse_args()
    table = "\n".join(rows(options.seconds))
    print(table)
    if not options.print:
        readme = ROOT / "README.md"
        block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
        text = readme.read_text(encoding="utf-8")
        assert block.search(text), f"README.md has no block {BEGIN}"
        readme.write_text(block.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text), encoding="utf-8")


def rows(seconds: float) -> list[str]:
    """The Markdown table, and below it what it was measured on."""
    lines = [
        "| model, float32 | shape | graphc ms | ONNX Runtime ms | times faster | of the FMA peak |",
        "|---|---|---|---|---|---|",
    ]
    ratios = []
    models = Models(MODELS)
    for subject in SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            source = models.path(subject.name)
            artifact = graphc.compile(source, output=Path(folder) / "m.gc", verify=False)
            for sizes in subject.sizes:
                dims = dict(zip(subject.dims, sizes, strict=True))
                result = bench.bench(artifact.path, dims, {}, against=source, seconds=seconds)
                ours, theirs = result.sides
                ratios.append(theirs.median / ours.median)
                share = result.share(ours)
                lines.append(
                    f"| {subject.title} | {' x '.join(map(str, sizes))} "
                    f"| {1e3 * ours.median:.1f} | {1e3 * theirs.median:.1f} | {ratios[-1]:.2f} "
                    f"| {'' if share is None else f'{share:.0%}'} |"
                )
                print(lines[-1], file=sys.stderr)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    cores = detect.machine().cores
    peak, bandwidth = bench.peak(cores)
    lines += [
        "",
        f"Geometric mean {mean:.2f}. {cores} threads on {processor()} (float32 FMA peak "
        f"{peak:.0f} GFLOP/s, reads {bandwidth:.0f} GB/s, both measured), ONNX Runtime "
        f"{onnxruntime.__version__}; `python benchmarks/figures.py` measures it again.",
    ]
    return lines


def processor() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"model name\s*: (.*)", info)
    return found.group(1).strip() if found else "an unnamed processor"


if __name__ == "__main__":
    main()
