"""A sample of ONNX's node cases against the table; `run.py --check` compares all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CASES = 1770


def test_sample_is_what_the_table_says() -> None:
    """A new pass fails as a new failure does: the table is exact."""
    command = [sys.executable, str(FOLDER / "run.py"), "--check", "--every", "40"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_table_lists_reasons() -> None:
    table = json.loads((FOLDER / "results.json").read_text())
    assert set(table) == {"cases", "failing", "fixed"}
    assert table["cases"] == CASES
    assert all(table["failing"].values())
    assert not set(table["failing"]) & set(table["fixed"])
