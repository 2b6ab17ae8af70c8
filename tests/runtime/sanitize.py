"""Builds the runtime with a program under a sanitizer, and runs 4 contexts in 4 threads on it.

    python tests/runtime/sanitize.py address|thread [--seconds 60] [--model M.onnx] [name=MAX ...]
    python tests/runtime/sanitize.py address|thread [--seconds 60] --cache

Without --model the program is the hand-made one of tests/small_artifact.py; with it, the model is
compiled first and its own host program and kernels are used. --cache is for the paged caches of
tests/paged_decoder.py. Needs gcc or clang; exit status 0
when clean.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import c_compiler
import paged_decoder
import small_artifact

import graphc
from graphc.codegen import link

HERE: Final = Path(__file__).resolve().parent
FLAGS: Final = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


@dataclass(frozen=True)
class Program:
    """An artifact and the two inputs of its link that the artifact does not keep."""

    artifact: Path
    host_source: str
    kernels: tuple[bytes, ...]


def make(
    place: Path,
    model: Path | None = None,
    hand_made: Callable[[Path], object] = small_artifact.build,
) -> Program:
    """Compile `model`, or the hand-made program, to `place`, keeping what was linked."""
    seen: list[tuple[str, tuple[bytes, ...]]] = []
    original = link.build

    def build(host_source: str, kernels: Any, output: Path, **options: Any) -> link.LinkedFiles:
        seen.append((host_source, tuple(kernels)))
        return original(host_source, kernels, output, **options)

    os.environ["GRAPHC_NO_CACHE"] = "1"  # a cached artifact would not be linked again
    link.build = build
    try:
        if model is None:
            hand_made(place)
        else:
            graphc.compile(model, output=place)
    finally:
        link.build = original
        del os.environ["GRAPHC_NO_CACHE"]
    return Program(place, *seen[0])


def build(program: Program, kind: str, main: str, work: Path) -> Path:
    """`main` is a program of this directory or graphc-run; returns the instrumented executable."""
    (work / "host.c").write_text(program.host_source)
    objects = []
    for number, data in enumerate(program.kernels):
        objects.append(work / f"kernels{number}.o")
        objects[-1].write_bytes(data)
    own = HERE / f"{main}.c"
    sources = c_compiler.runtime_sources(program=not own.exists())
    sources += [work / "host.c", *([own] if own.exists() else [])]
    flags = ["-O1", "-g", "-fno-omit-frame-pointer", *FLAGS[kind]]
    return c_compiler.compile_c([*flags, *sources, *objects], work / f"{main}-{kind}")


def run(command: list[str | Path], timeout: float) -> subprocess.CompletedProcess[str]:
    """Run an instrumented program with the sanitizers' options set."""
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        env={**os.environ, **ENVIRONMENT},
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=sorted(FLAGS))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("limits", nargs="*", help="largest value of a dimension: name=MAX")
    arguments = parser.parse_intermixed_args()
    if c_compiler.system_compiler() is None:
        print("sanitize: needs gcc or clang", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if arguments.cache:
            program = make(work / "program.gc", None, paged_decoder.compile_to)
            stress = build(program, arguments.kind, "cache_stress", work)
            command = [stress, program.artifact, str(arguments.seconds), "4"]
        else:
            program = make(work / "program.gc", arguments.model)
            stress = build(program, arguments.kind, "stress", work)
            sizes = [str(arguments.seconds), "4", "2", *arguments.limits]
            command = [stress, program.artifact, *sizes]
        done = run(command, arguments.seconds * 2 + 120)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
