"""The artifact cache: keys, copies that are checked, and the size limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graphc import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "artifacts"


def artifact(path: Path, size: int = 100) -> Path:
    (path / "include").mkdir(parents=True)
    (path / "weights.bin").write_bytes(bytes(size))
    (path / "include" / "graphc.h").write_text("// header")
    (path / "graphc-run").write_text("#!")
    (path / "graphc-run").chmod(0o755)
    return path


def fresh(path: Path) -> Path:
    path.mkdir()
    return path


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    original = artifact(tmp_path / "a")
    cache.store("key", original)
    copy = fresh(tmp_path / "b")
    assert cache.restore("key", copy)
    assert (copy / "weights.bin").read_bytes() == bytes(100)
    assert (copy / "include" / "graphc.h").read_text() == "// header"
    assert os.access(copy / "graphc-run", os.X_OK)
    assert not cache.restore("other", fresh(tmp_path / "c"))


@pytest.mark.parametrize("damage", ["change", "truncate", "remove", "record"])
def test_damage_is_noticed(
    tmp_path: Path, folder: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.store("key", artifact(tmp_path / "a"))
    weights = folder / "key" / "files" / "weights.bin"
    if damage == "change":
        weights.write_bytes(b"x" * 100)
    elif damage == "truncate":
        weights.write_bytes(bytes(99))
    elif damage == "remove":
        weights.unlink()
    else:
        (folder / "key" / "entry.json").write_text('{"weights.bin": ')
    target = fresh(tmp_path / "b")
    assert not cache.restore("key", target)
    assert not list(target.iterdir())
    cache.store("key", tmp_path / "a")
    assert cache.restore("key", target)


def test_the_least_recently_used_go_first(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate(("old", "used", "new")):
        cache.store(name, artifact(tmp_path / name, 1000))
        os.utime(folder / name / "entry.json", (number, number))
    assert cache.restore("old", fresh(tmp_path / "copy"))
    monkeypatch.setenv("GRAPHC_CACHE_BYTES", "4500")
    cache.store("last", artifact(tmp_path / "last", 1000))
    assert sorted(path.name for path in folder.iterdir()) == ["last", "new", "old"]


def test_one_entry_above_the_limit_is_not_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHC_CACHE_BYTES", "500")
    cache.store("big", artifact(tmp_path / "a", 1000))
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_written_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHC_CACHE", str(tmp_path / "file" / "cache"))
    cache.store("key", artifact(tmp_path / "a"))
    assert "not kept in the cache" in capsys.readouterr().err


def test_keys_depend_on_contents_and_options(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"one")
    first = cache.key([model], {"a": 1})
    assert first == cache.key([model], {"a": 1})
    assert first != cache.key([model], {"a": 2})
    elsewhere = fresh(tmp_path / "d") / "m.onnx"
    elsewhere.write_bytes(b"one")
    assert first == cache.key([elsewhere], {"a": 1})
    model.write_bytes(b"two")
    assert first != cache.key([model], {"a": 1})
    assert first != cache.key([elsewhere, tmp_path / "absent.data"], {"a": 1})
