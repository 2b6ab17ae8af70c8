"""Branches, loops and dimensions that depend on values: the plan, and the C of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compiled_runner
import flow_models
import numpy as np
import onnx
import pytest
from relax_vm import reference

import graphc
from graphc.errors import InputError, UnsupportedError
from graphc.frontend import load
from graphc.module import Module

Make = Callable[[], tuple[Any, Iterator[flow_models.Feeds]]]
Loaded = dict[str, Module]


@pytest.mark.parametrize("make", flow_models.MODELS, ids=lambda make: make.__name__)
def test_plans_agree_with_onnx_runtime(make: Make, tmp_path: Path) -> None:
    model, feeds = make()
    compiled_runner.compare(model, tmp_path, *feeds)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Artifacts, by name."""
    folder = tmp_path_factory.mktemp("flow")
    modules = {}
    for make in (flow_models.found, flow_models.growing):
        path = folder / f"{make.__name__}.onnx"
        onnx.save(make()[0], path)
        output = folder / f"{make.__name__}.gc"
        graphc.compile(path, output=output, verify=False)
        modules[make.__name__] = graphc.load(output, threads=2)
    return modules


@pytest.mark.parametrize("make", [flow_models.found, flow_models.growing])
def test_artifacts_agree_with_onnx_runtime(make: Make, loaded: Loaded) -> None:
    model, feeds = make()
    for feed in feeds:
        for got, want in zip(
            loaded[make.__name__].run(None, feed), reference(model, feed), strict=True
        ):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_shapes_that_only_a_run_knows_are_said_to_be(loaded: Loaded) -> None:
    shapes = loaded["found"].infer_shapes({"x": (2, 5), "w": (2, 5), "c": (5,)})
    assert shapes == {"y": (-1,), "s": (1,), "z": (2, -1)}
    text = {port.name: port.shape for port in loaded["found"].outputs}
    assert text["z"] == ("a", "z.count")


def test_a_loop_refuses_what_it_cannot_carry(tmp_path: Path) -> None:
    node, port = flow_models.node, flow_models.port
    body = flow_models.graph(
        [node("Identity", ["c"], ["d"]), node("Unsqueeze", ["s", "zero"], ["t"])],
        [port("i", 7, []), port("c", 9, []), port("s", 1)],
        [port("d", 9, []), port("t", 1)],
        zero=np.array([0]),
    )
    model = flow_models.model(
        [node("Loop", ["m", "", "x"], ["y"], body=body)], [port("x", 1, [2]), port("m", 7, [])],
        [port("y", 1)],
    )  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError) as caught:
        load(tmp_path / "m.onnx")
    assert "becomes float32 of 2 dimensions from float32 of 1" in str(caught.value.blockers)


def test_a_condition_longer_than_the_axis_is_refused(loaded: Loaded) -> None:
    feed = {"x": np.ones((2, 5), "float32"), "w": np.ones((2, 5), "float32")}
    with pytest.raises(InputError):
        loaded["found"].run(None, {**feed, "c": np.ones(6, bool)})
