"""The wheel has every module and data file: it is built, installed elsewhere, and imported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import graphc

ROOT = Path(graphc.__file__).resolve().parent.parent
DATA = {".c", ".h", ".toml", ".ll", ".jsonl", ".json", ".typed"}
COPIED = ("graphc", "passes", "codegen", "targets", "tuning_logs")

IMPORT_ALL = """
import pkgutil, importlib, sys
import graphc
names = [m.name for m in pkgutil.walk_packages(graphc.__path__, "graphc.")]
for name in names:
    importlib.import_module(name)
assert not graphc.__file__.startswith(sys.argv[1]), graphc.__file__
print(len(names))
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=_clean())
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}


def test_wheel_in_a_fresh_environment(tmp_path: Path) -> None:
    source = tmp_path / "path with spaces"
    source.mkdir()
    for name in COPIED:  # a copy: building leaves folders behind
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    dist = tmp_path / "dist"
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir"]
    run(sys.executable, *build, dist, source, cwd=tmp_path)
    (wheel,) = dist.glob("*.whl")

    fresh = tmp_path / "venv"
    venv.create(fresh, with_pip=False, symlinks=True)
    paths = {"base": str(fresh), "platbase": str(fresh)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    run(
        sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", site, wheel, cwd=site
    )
    # The dependencies are the ones of this environment, but not its editable graphc.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = fresh / "bin" / "python"
    count = int(run(python, "-c", IMPORT_ALL, ROOT, cwd=tmp_path))
    sources = [p for name in COPIED for p in (ROOT / name).rglob("*.py")]
    assert count == len(sources) - 1  # all but graphc itself

    installed = {str(p.relative_to(site / "graphc")) for p in (site / "graphc").rglob("*")}
    for name in COPIED:
        base = ROOT if name != "graphc" else ROOT / "graphc"
        for path in (ROOT / name).rglob("*"):
            if path.suffix in DATA | {".py"}:
                assert str(path.relative_to(base)) in installed, path
    assert "compile" in run(python, "-m", "graphc", "--help", cwd=tmp_path)
