"""A few seconds of 4 contexts in 4 threads under asan + ubsan and tsan; sanitize.py runs longer."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import paged_decoder
import pytest
import sanitize
import small_artifact
from c_compiler import compile_c, runtime_sources, system_compiler

pytestmark = pytest.mark.skipif(
    system_compiler() is None, reason="needs gcc or clang: apt install gcc"
)
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> sanitize.Program:
    return sanitize.make(tmp_path_factory.mktemp("program") / "program.gc")


@pytest.mark.parametrize("kind", sorted(sanitize.FLAGS))
def test_stress(kind: str, program: sanitize.Program, tmp_path: Path) -> None:
    stress = sanitize.build(program, kind, "stress", tmp_path)
    done = sanitize.run([stress, program.artifact, "2", "4", "2"], 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout and not done.stdout.startswith("0 runs")


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> sanitize.Program:
    place = tmp_path_factory.mktemp("language") / "program.gc"
    return sanitize.make(place, None, paged_decoder.compile_to)


@pytest.mark.parametrize("kind", sorted(sanitize.FLAGS))
def test_cache_stress(kind: str, language_model: sanitize.Program, tmp_path: Path) -> None:
    stress = sanitize.build(language_model, kind, "cache_stress", tmp_path)
    done = sanitize.run([stress, language_model.artifact, "2", "3"], 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout and not done.stdout.startswith("0 steps")


@pytest.mark.parametrize("kind", sorted(sanitize.FLAGS))
def test_pool(kind: str, tmp_path: Path) -> None:
    flags = ["-O1", "-g", *sanitize.FLAGS[kind]]
    sources = [HERE / "pool_check.c", *runtime_sources()]
    check = compile_c([*flags, *sources], tmp_path / "pool_check")
    done = sanitize.run([check], 120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_graphc_run_on_mutated_files(program: sanitize.Program, tmp_path: Path) -> None:
    """Damaged .npy and weights files are refused or read, never a crash: exit status 0, 1 or 2."""
    runner = sanitize.build(program, "address", "graphc-run", tmp_path)
    feeds = small_artifact.feeds(2, 3)
    for name, array in feeds.items():
        np.save(tmp_path / f"{name}.npy", array)
    good = {name: (tmp_path / f"{name}.npy").read_bytes() for name in feeds}
    weights = (program.artifact / "weights.bin").read_bytes()
    draw = random.Random(7)
    refused = 0
    for attempt in range(80):
        damaged = ["ids", "x", "weights"][attempt % 3]
        (tmp_path / "weights.bin").write_bytes(weights)
        for name, data in good.items():
            (tmp_path / f"{name}.npy").write_bytes(data)
        if damaged == "weights":
            (tmp_path / "weights.bin").write_bytes(_mutated(weights, 64, draw))
        else:
            (tmp_path / f"{damaged}.npy").write_bytes(_mutated(good[damaged], 128, draw))
        inputs = [p for name in feeds for p in ("--input", f"{name}={tmp_path / name}.npy")]
        done = sanitize.run([runner, tmp_path, *inputs, "--threads", "1"], 60)
        assert done.returncode in (0, 2), (attempt, damaged, done.stderr)
        assert "Sanitizer" not in done.stderr, done.stderr
        refused += done.returncode == 2
    assert refused > 40


def _mutated(data: bytes, header: int, draw: random.Random) -> bytes:
    kind = draw.randrange(4)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 4))):
        changed[draw.randrange(header if kind < 3 else len(data))] = draw.randrange(256)
    return bytes(changed)
