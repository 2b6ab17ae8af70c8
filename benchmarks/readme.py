"""The generated parts of README.md, and the name of the machine that made them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def replace(name: str, table: str) -> None:
    """Put a table between the comments `generated: NAME` and `end of generated NAME`."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end of generated {name} -->"
    readme = ROOT / "README.md"
    block = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    text = readme.read_text(encoding="utf-8")
    assert block.search(text), f"README.md has no block {begin}"
    readme.write_text(block.sub(lambda _: f"{begin}\n{table}\n{end}", text), encoding="utf-8")


def processor() -> str:
    """The processor's own name."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"model name\s*: (.*)", info)
    return found.group(1).strip() if found else "an unnamed processor"
