"""2,000 mutated manifests and weights: no crash, no hang, no exception but GraphcError."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import Compiled

BATCH = 250
WORKER = Path(__file__).with_name("artifact_worker.py")


@pytest.mark.parametrize("first", range(0, 2000, BATCH))
def test_mutated_artifacts(mlp: Compiled, tmp_path: Path, first: int) -> None:
    # In processes of their own, so that a crash is seen and where it was.
    arguments = [str(mlp.artifact), str(tmp_path), str(first), str(first + BATCH)]
    try:
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", str(WORKER), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired as late:
        tried = (late.stdout or b"").split()
        pytest.fail(f"no end after 120 s, at mutant {tried[-1:]}")
    seeds = done.stdout.split()
    assert done.returncode == 0, f"mutant {seeds[-1:]}: {done.returncode}\n{done.stderr[-3000:]}"
    assert seeds[-2] == "refused" and int(seeds[-1]) > BATCH // 2
