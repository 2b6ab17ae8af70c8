"""The thread pool: tasks, errors, barriers, nesting and workspaces (pool_check.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from c_compiler import compile_c, runtime_sources

HERE = Path(__file__).resolve().parent


def test_pool(tmp_path: Path) -> None:
    sources = [HERE / "pool_check.c", *runtime_sources()]
    program = compile_c(["-O2", "-Wall", "-Wextra", "-Werror", *sources], tmp_path / "pool_check")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
