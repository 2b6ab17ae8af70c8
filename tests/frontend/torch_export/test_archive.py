""".pt2 files: mapped weights, and files that would execute code or are damaged."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_models import BATCH, real

from graphc.errors import GraphcError, ModelError, UnsupportedError
from graphc.frontend import load
from graphc.frontend.torch_export import archive, live


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 5)
        self.register_buffer("offset", real(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2 + self.offset


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "scaled.pt2"
    live.save(Scaled().eval(), (real(2, 8),), ({0: BATCH},), path)
    return path


def changed(file: Path, target: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """A copy with its entries changed, or left out where `change` gives None."""
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w") as copy:
        for entry in source.infolist():
            data = change(entry.filename.partition("/")[2], source.read(entry))
            if data is not None:
                copy.writestr(entry.filename, data)
    return target


def edited(file: Path, target: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy with another program."""

    def change(name: str, data: bytes) -> bytes:
        if name != "models/model.json":
            return data
        record = json.loads(data)
        edit(record)
        return json.dumps(record).encode()

    return changed(file, target, change)


def test_weights_are_mapped_and_dimensions_keep_their_names(file: Path) -> None:
    model = load(file)
    assert [dim.name for dim in model.signatures["main"].dims] == ["batch"]
    memory = model.params["linear.weight"]
    while isinstance(memory, np.ndarray) and not isinstance(memory, np.memmap):
        memory = memory.base  # a torch tensor's in between
    program, names = archive.read(file)
    assert list(names.values()) == ["batch"]
    with torch.no_grad():
        program.state_dict["linear.weight"].zero_()  # the mapping is private: the file stays
    again, _ = archive.read(file)
    assert again.state_dict["linear.weight"].abs().sum() > 0


class Attack:
    """What a pickle may hold: a call of anything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_sample_inputs_are_never_unpickled(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    buffer = io.BytesIO()
    torch.save(Attack(mark), buffer)
    evil = changed(
        file,
        tmp_path / "evil.pt2",
        lambda name, data: buffer.getvalue() if name.startswith("data/sample_inputs") else data,
    )
    load(evil)
    assert not mark.exists()


def test_pickled_weights_are_refused(file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"

    def change(name: str, data: bytes) -> bytes:
        if name.endswith("model_weights_config.json"):
            record = json.loads(data)
            for entry in record["config"].values():
                entry["use_pickle"] = True
            return json.dumps(record).encode()
        return pickle.dumps(Attack(mark)) if "weight_" in name else data

    evil = changed(file, tmp_path / "evil.pt2", change)
    with pytest.raises(UnsupportedError, match="pickled object, which could execute code"):
        load(evil)
    assert not mark.exists()


EXPRESSIONS = (
    "__import__('os').system('true')",
    "Symbol('s0').__class__",
    "(lambda: 1)()",
    "[x for x in (1,)]",
    "open('/etc/passwd')",
)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_expressions_are_not_evaluated(file: Path, tmp_path: Path, text: str) -> None:
    def edit(record: dict[str, Any]) -> None:
        pending: list[Any] = [record]
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                if "expr_str" in item:
                    item["expr_str"] = text
                pending.extend(item.values())
            elif isinstance(item, list):
                pending.extend(item)

    with pytest.raises(ModelError, match="is not an expression over dimensions"):
        load(edited(file, tmp_path / "evil.pt2", edit))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_guards_are_not_executed(file: Path, tmp_path: Path, text: str) -> None:
    evil = edited(file, tmp_path / "evil.pt2", lambda record: record.update(guards_code=[text]))
    with pytest.raises(ModelError, match="is not an expression over dimensions"):
        load(evil)


@pytest.mark.parametrize(
    "target",
    ["torch.hub.load", "torch.ops.aten.add.__class__", "_operator.call", "torch.ops.other.thing",
     "math.__loader__", "#custom"],
)  # fmt: skip
def test_calls_of_anything_else_are_refused(file: Path, tmp_path: Path, target: str) -> None:
    def edit(record: dict[str, Any]) -> None:
        record["graph_module"]["graph"]["nodes"][0]["target"] = target

    with pytest.raises(UnsupportedError, match="neither an ATen operator nor arithmetic"):
        load(edited(file, tmp_path / "evil.pt2", edit))


def test_damaged_files_are_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for number, data in enumerate((b"", b"PK\3\4", whole[: len(whole) // 2], b"x" * 1000)):
        path = tmp_path / f"{number}.pt2"
        path.write_bytes(data)
        with pytest.raises(ModelError):
            load(path)
    without = changed(
        file, tmp_path / "without.pt2", lambda name, data: None if "weight_0" in name else data
    )
    with pytest.raises(ModelError, match="weight_0"):
        load(without)
    short = changed(
        file, tmp_path / "short.pt2", lambda name, data: data[:8] if "weight_0" in name else data
    )
    with pytest.raises(ModelError, match="reaches outside"):
        load(short)


def test_records_that_contradict_themselves_are_refused(file: Path, tmp_path: Path) -> None:
    def drop(key: str) -> Callable[[dict[str, Any]], None]:
        return lambda record: record["graph_module"].pop(key)

    for key in ("graph", "signature", "module_call_graph"):
        with pytest.raises(GraphcError):
            load(edited(file, tmp_path / f"{key}.pt2", drop(key)))
