"""Devices are data: one TOML each, on top of a base, strictly read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graphc.errors import ConfigError
from graphc.targets import load

DEVICE = """
description = "a small board"
base = "x86-64-v3"
threads = 2
features = ["avxvnni"]
[cache]
l2 = 262144
[tvm]
mattr = ["+avxvnni"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_TARGETS", str(tmp_path))
    return tmp_path


def test_a_device_is_one_file(folder: Path) -> None:
    (folder / "board.toml").write_text(DEVICE)
    board, base = load.get("board"), load.get("x86-64-v3")
    assert "board" in load.names()
    assert (board.threads, board.l1, board.l2) == (2, base.l1, 262144)
    assert board.features == base.features | {"avxvnni"}
    assert board.has("fma") and not board.has("avx512f")
    assert board.tvm_dict() == base.tvm_dict() | {"mattr": ["+avxvnni"]}
    assert board.link == base.link
    assert board.vector_bits == 256 and board.lanes(32) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bases = 'x86-64-v3'", "did you mean base"),
        ("base = 'x86-64-v5'", "did you mean x86-64-v"),
        ("base = 'board'", "circle"),
        ("base = 'x86-64-v3'\nthreads = '2'", "expected a whole number"),
        ("base = 'x86-64-v3'\nthreads = true", "expected a whole number"),
        ("base = 'x86-64-v3'\nthreads = 0", "at least 1"),
        ("base = 'x86-64-v3'\nvector_bits = 200", "power of two"),
        ("base = 'x86-64-v3'\nfeatures = [1]", "list of strings"),
        ("base = 'x86-64-v3'\n[tvm]\nmcup = 'x'", "did you mean mcpu"),
        ("base = 'x86-64-v3'\ntvm = 3", "expected a table"),
        ("description = 'alone'", "is missing"),
        ("base = ", "TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(folder: Path, text: str, message: str) -> None:
    (folder / "board.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load.get("board")


@pytest.mark.parametrize("name", ["x86-64-v9", "", "../x86-64-v3", "/etc/passwd", "a b"])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ConfigError, match="unknown target"):
        load.get(name)


def test_each_base_adds_to_the_one_below() -> None:
    v2, v3, v4 = (load.get(f"x86-64-v{level}") for level in (2, 3, 4))
    assert v2.features < v3.features < v4.features
    assert v2.vector_bits < v3.vector_bits < v4.vector_bits


def test_equal_targets_hash_equal() -> None:
    assert load.get("host") == load.get("host")
    assert hash(load.get("host")) == hash(load.get("host"))


def test_no_tvm_is_imported() -> None:
    code = (
        "import sys; from graphc.targets import load; load.get('host'); print('tvm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_tvm_takes_every_target() -> None:
    target = pytest.importorskip("tvm.target")
    for name in load.names():
        assert target.Target(load.get(name).tvm_dict()).kind.name == "llvm"
