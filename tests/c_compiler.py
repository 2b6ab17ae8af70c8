"""Compiles C for tests: with the system's compiler when there is one, else with ziglang's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from graphc.artifact import RUNTIME
from graphc.codegen import link


def system_compiler() -> str | None:
    """gcc or clang, whose sanitizers the runtime is tested with; None when there is neither."""
    return shutil.which("gcc") or shutil.which("clang")


def compile_c(arguments: Sequence[str | Path], output: Path) -> Path:
    """Compile and link the arguments (sources, flags) into `output`; the runtime is included."""
    found = system_compiler()
    command = [found] if found else [link._zig(), "cc", "-fno-sanitize=all"]
    include = [f"-I{RUNTIME}", f"-I{RUNTIME}/tokenizer"]
    full = [*command, "-std=gnu11", *include, *arguments, "-o", output, "-lm", "-lpthread"]
    done = subprocess.run([str(part) for part in full], capture_output=True, text=True)
    assert done.returncode == 0, f"{full}\n{done.stderr}"
    return output


def runtime_sources(*, program: bool = False) -> list[Path]:
    """The runtime's C files; `program` adds those of graphc-run."""
    own = {"generate.c", "main.c", "npy.c", "speech.c"}
    files = [*RUNTIME.glob("*.c"), *RUNTIME.glob("tokenizer/*.c")]
    return sorted(path for path in files if program or path.name not in own)
