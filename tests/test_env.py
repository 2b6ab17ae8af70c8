"""Environment knobs: defaults, values, and refusal of what cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphc import env
from graphc.errors import ConfigError


def test_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRAPHC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.debug() == 0
    assert env.dump() is None
    assert env.cache_dir() == tmp_path / "graphc"
    assert env.cc() is None
    assert env.no_cache() is False


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("2k", 2048), ("3M", 3 << 20), ("10G", 10 << 30)]
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("GRAPHC_CACHE_BYTES", text)
    assert env.cache_bytes() == size


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GRAPHC_DEBUG", "6"),
        ("GRAPHC_DEBUG", "yes"),
        ("GRAPHC_DEBUG", "-1"),
        ("GRAPHC_NO_CACHE", "true"),
        ("GRAPHC_CACHE_BYTES", "ten"),
        ("GRAPHC_CACHE_BYTES", "-5G"),
        ("GRAPHC_CACHE_BYTES", "5X"),
        ("GRAPHC_DUMP", __file__),
    ],
)
def test_bad_values_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=name):
        env.check()


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHC_DEBGU", "1")
    with pytest.raises(ConfigError, match="did you mean GRAPHC_DEBUG"):
        env.check()


def test_log_follows_the_level(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAPHC_DEBUG", "2")
    env.log(2, "seen")
    env.log(3, "hidden")
    assert capsys.readouterr().err == "graphc: seen\n"


def test_dump_writes_into_a_new_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHC_DUMP", str(tmp_path / "a" / "b"))
    env.write_dump("1-load.py", "text")
    assert (tmp_path / "a" / "b" / "1-load.py").read_text() == "text"
