"""Real quantised models and convolutional ones: compiled whole, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image, ImageDraw, ImageFont
from support import Models

import graphc
from graphc import env, module
from graphc.testing import Array
from graphc.verify import verify

slow = pytest.mark.skipif(
    env.test_models() is None,
    reason="minutes each: set GRAPHC_TEST_MODELS to a folder, the models are fetched into it",
)
WORDS = ["fix", "the", "race", "in", "the", "thread", "pool", "and", "add", "a", "test"]


def _compiled(models: Models, name: str, folder: Path) -> tuple[Path, Path]:
    model, artifact = models.path(name), folder / f"{name}.gc"
    graphc.compile(model, output=artifact)
    return model, artifact


def _check(artifact: Path, model: Path, **feeds: Array) -> None:
    report = verify(artifact, model, inputs=feeds)
    assert report.passed and not report.refused, report


def test_an_encoder_that_quantises_its_activations(models: Models, tmp_path: Path) -> None:
    """Tokens that a title generator may see, one batch with padding."""
    model, artifact = _compiled(models, "title encoder", tmp_path)
    rng = np.random.default_rng(0)
    ids = np.concatenate([rng.integers(3, 2000, (2, len(WORDS))), np.ones((2, 1), int)], axis=1)
    mask = np.ones_like(ids)
    mask[1, 6:] = 0
    _check(artifact, model, input_ids=ids, attention_mask=mask)
    # int8 weights stay int8: the embedding's table and every product's.
    assert (artifact / "weights.bin").stat().st_size < 1.1 * model.stat().st_size


@slow
def test_its_decoder(models: Models, tmp_path: Path) -> None:
    model, artifact = _compiled(models, "title decoder", tmp_path)
    rng = np.random.default_rng(1)
    hidden = (rng.normal(size=(2, 9, 512)) * 0.2).astype("float32")
    ids, mask = rng.integers(3, 2000, (2, 5)), np.ones((2, 9), int)
    _check(artifact, model, input_ids=ids, encoder_hidden_states=hidden,
           encoder_attention_mask=mask)  # fmt: skip


@slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [("text direction", (3, 3, 48, 192)), ("text line", (2, 3, 48, 160)),
     ("text places", (1, 3, 64, 96))],
)  # fmt: skip
def test_reading_text(
    models: Models, tmp_path: Path, name: str, shape: tuple[int, int, int, int]
) -> None:
    model, artifact = _compiled(models, name, tmp_path)
    pixels = np.random.default_rng(2).uniform(-1, 1, shape).astype("float32")
    _check(artifact, model, x=pixels)


LINES = ("Hello, world 2024", "graphc reads this line", "Total: 1,234.50 EUR", "KERNEL-42")


def _pixels(line: str) -> Array:
    """Black on white in a strip of 48 rows, from -1 to 1."""
    font = ImageFont.load_default(30)
    strip = Image.new("RGB", (round(font.getlength(line)) + 24, 48), "white")
    ImageDraw.Draw(strip).text((12, 6), line, "black", font)
    return (np.asarray(strip, np.float32).transpose(2, 0, 1)[None] / 127.5 - 1).astype("float32")


def _read(scores: Array, characters: list[str]) -> str:
    """The best character of each column, of equal neighbours one, without blanks."""
    best = scores[0].argmax(-1)
    changed = np.append(True, best[1:] != best[:-1])
    return "".join(characters[at] for at in best[changed & (best != 0)])


@slow
def test_a_line_of_text_is_read(models: Models, tmp_path: Path) -> None:
    model, artifact = _compiled(models, "text line", tmp_path)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    known = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    characters = ["", *known, " "]
    with module.load(artifact) as loaded:
        for line in LINES:
            feeds = {"x": _pixels(line)}
            scores = loaded.run([loaded.outputs[0].name], feeds)[0]
            found, expected = (
                _read(each, characters) for each in (scores, session.run(None, feeds)[0])
            )
            assert found == expected and len(found) > len(line) // 2, (line, found, expected)
