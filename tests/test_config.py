"""CompileConfig and the parsing of --dim and --input."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from graphc.config import CompileConfig, parse_bounds, parse_dims, parse_inputs
from graphc.errors import ConfigError


def test_bounds() -> None:
    texts = ["batch=3", "sequence=1..512", "frames=2.."]
    assert parse_bounds(texts) == {"batch": 3, "sequence": (1, 512), "frames": (2, None)}


@pytest.mark.parametrize(
    "text",
    ["batch", "batch=", "=3", "b=x", "b=-1", "b=..3", "b=3..2", "b=0", "b=0..4", "b=1.5"],
)
def test_bad_bounds(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bounds([text])


def test_a_dim_given_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        parse_bounds(["batch=3", "batch=4"])


def test_dims_want_one_number() -> None:
    assert parse_dims(["batch=3"]) == {"batch": 3}
    with pytest.raises(ConfigError, match="range"):
        parse_dims(["batch=1..3"])


def test_inputs(tmp_path: Path) -> None:
    path = tmp_path / "a=b.npy"
    path.touch()
    assert parse_inputs([f"x={path}"]) == {"x": path}
    with pytest.raises(ConfigError, match="no such file"):
        parse_inputs(["x=nowhere.npy"])


@pytest.mark.parametrize(
    "options",
    [
        {"calibration": Path("nowhere.npz")},
        {"calibration_method": "guess"},
        {"smooth": 2.0},
        {"max_error": 0.0},
        {"tuning_log": Path("log")},
        {"max_context": 0},
        {"decoder": "on"},
        {"threads": 0},
        {"tolerance": 0.0},
        {"tolerance": float("nan")},
        {"dims": {"batch": 0}},
        {"dims": {"batch": True}},
        {"dims": {"batch": (1, 2, 3)}},
        {"dims": {"batch": "4"}},
    ],
)
def test_what_would_do_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CompileConfig(**options)


def test_frozen_and_recorded() -> None:
    dims = {"b": 2, "a": (1, None)}
    config = CompileConfig(dims=dims, output=Path("x.gc"))
    dims["b"] = 7
    assert config.record()["dims"] == {"a": [1, None], "b": 2}
    assert "output" not in config.record()
    with pytest.raises(FrozenInstanceError):
        config.target = "other"  # type: ignore[misc]
    assert hash(config) == hash(CompileConfig(dims={"b": 2, "a": (1, None)}, output=Path("x.gc")))
