"""Random graphs through graphc's stages and through ONNX Runtime: what differs is a fault.

    python tests/frontend/differential.py 500 --seed 0

runs the graphs of seeds 0 to 499, each in a process of its own, and prints the seed of every one
that differs, crashes or ends in an error that is not for a user; its model stays in --save.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import re
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "frontend"), str(TESTS / "codegen")]

import random_graphs  # noqa: E402
from compiled_runner import compiled, run  # noqa: E402
from relax_vm import reference  # noqa: E402

from graphc import testing  # noqa: E402
from graphc.errors import GraphcError  # noqa: E402

SECONDS = 60.0


def check(seed: int, folder: Path) -> str:
    """Compiles and runs the graph of this seed: "same", "skipped", "refused: …" or what differs."""
    drawn = random_graphs.draw(seed)
    if not drawn.model.graph.node:
        return "skipped"
    try:
        expected = [reference(drawn.model, feed) for feed in drawn.feeds]
    except random_graphs.REFUSALS:
        return "skipped"
    onnx.save(drawn.model, folder / f"{seed}.onnx")
    try:
        runner = compiled(drawn.model, folder)
        for feed, wanted in zip(drawn.feeds, expected, strict=True):
            reason = difference(run(runner, feed), wanted, drawn)
            if reason:
                return reason
    except GraphcError as error:
        blockers = getattr(error, "blockers", ())
        return f"refused: {type(error).__name__}: {_kind(str(blockers[0] if blockers else error))}"
    (folder / f"{seed}.onnx").unlink()
    return "same"


def difference(
    results: list[np.ndarray], wanted: list[np.ndarray], drawn: random_graphs.Drawn
) -> str:
    """The first output that is not as it should be, empty when all are."""
    outputs = zip(drawn.model.graph.output, results, wanted, drawn.tolerances, strict=True)
    for port, got, want, tolerance in outputs:
        makers = {name: node.op_type for node in drawn.model.graph.node for name in node.output}
        where = f"wrong: {port.name} of {makers[port.name]}"
        if (got.dtype, got.shape) != (want.dtype, want.shape):
            return f"{where}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
        worst = testing.compare(got, want).worst
        if worst > (tolerance if want.dtype.kind == "f" else 0):
            return f"{where} {want.dtype} {want.shape}: off by {worst:.3g}"
    return ""


def _kind(reason: str) -> str:
    """A refusal without the names and numbers of this graph."""
    reason = re.sub(r"\S*model\.onnx:? ?", "", reason)
    return re.sub(r"\d+", "N", re.sub(r"\b[vxc]\d+(_\d+)?\b", "T", reason))[:160]


def _child(seed: int, folder: Path, pipe: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        pipe.send(check(seed, folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this graph's result
        lines = str(error).strip().splitlines() or [""]
        pipe.send(f"fault: {type(error).__name__}: {lines[-1][:300]}")


def isolated(seed: int, folder: Path) -> str:
    """`check` in a process of its own, where a crash or a hang costs one graph."""
    context = multiprocessing.get_context("fork")
    mine, other = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(seed, folder, other))
    process.start()
    other.close()
    try:
        return str(mine.recv()) if mine.poll(SECONDS) else "fault: timeout"
    except EOFError:
        process.join()
        return f"fault: crash, exit status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--save", type=Path, help="folder for the models that fail")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    options = parser.parse_args()
    os.environ["TVM_NUM_THREADS"] = "1"
    folder = options.save or Path(tempfile.mkdtemp(prefix="graphc-differential-"))
    folder.mkdir(parents=True, exist_ok=True)
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() - start > options.seconds:
            print(f"stopped before seed {seed}")
            break
        outcome = isolated(seed, folder)
        counts[outcome if outcome.startswith("refused") else outcome.partition(":")[0]] += 1
        if outcome.startswith(("wrong", "fault")):
            print(f"seed {seed}: {outcome}", flush=True)
        elif outcome.startswith("refused"):
            print(f"seed {seed}: {outcome}", file=sys.stderr, flush=True)
    for outcome, count in counts.most_common():
        print(f"{count:6d} {outcome}")
    print(f"models: {folder}")
    return int(counts["wrong"] + counts["fault"] > 0)


if __name__ == "__main__":
    sys.exit(main())
