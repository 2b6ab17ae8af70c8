"""Hugging Face folders: what is built from them, compiled against torch, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import transformers

import graphc
from graphc.errors import ModelError, UnsupportedError
from graphc.frontend import huggingface, load


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a tokenizer's file."""
    path = tmp_path_factory.mktemp("hf") / "tiny.bert"
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=40,
    )  # fmt: skip
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(path)
    (path / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    return path


def test_inputs_and_bounds_come_from_the_configuration(folder: Path) -> None:
    signature = load(folder).signatures["main"]
    assert [(p.name, p.value_range) for p in signature.inputs] == [
        ("input_ids", (0, 49)),
        ("attention_mask", None),
        ("token_type_ids", (0, 1)),
    ]
    assert [p.name for p in signature.outputs] == ["last_hidden_state"]
    (batch, sequence) = signature.dims
    assert (batch.name, batch.lower) == ("batch", 1)
    assert (sequence.name, sequence.lower, sequence.upper) == ("sequence", 1, 40)


def test_it_compiles_verified_by_torch_and_keeps_the_tokenizer(
    folder: Path, tmp_path: Path
) -> None:
    artifact = graphc.compile(folder, output=tmp_path / "bert.gc")
    numerics = artifact.manifest.numerics
    assert numerics is not None and numerics["reference"] == "torch" and numerics["passed"]
    kept = (artifact.path / "tokenizer.json").read_bytes()
    assert kept == (folder / "tokenizer.json").read_bytes()
    assert "tokenizer.json" in [file.name for file in artifact.manifest.files]
    assert not (artifact.path / "config.json").exists()


def test_folders_that_are_no_models(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"without config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load(tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(ModelError, match="has no weights"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="transformers cannot load it"):
        load(tmp_path)


def test_weights_are_never_made_up(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    record["architectures"] = ["BertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(record), encoding="utf-8")
    shutil.copy(folder / "model.safetensors", tmp_path)
    with pytest.raises(ModelError, match="has no weights for cls"):
        huggingface.build(tmp_path)


def test_code_of_the_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    record = {
        "model_type": "mine",
        "architectures": ["Mine"],
        "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Mine"},
    }
    (tmp_path / "config.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "mine.py").write_text(f"open({str(mark)!r}, 'w')", encoding="utf-8")
    shutil.copy(folder / "model.safetensors", tmp_path)
    with pytest.raises(UnsupportedError, match="which is not run"):
        load(tmp_path)
    assert not mark.exists()


def test_an_architecture_that_transformers_does_not_have(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    record["architectures"] = ["os"]
    (tmp_path / "config.json").write_text(json.dumps(record), encoding="utf-8")
    shutil.copy(folder / "model.safetensors", tmp_path)
    with pytest.raises(UnsupportedError, match="has no architecture 'os'"):
        huggingface.build(tmp_path)
