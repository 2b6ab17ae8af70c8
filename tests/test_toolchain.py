"""Guards the pinned pair apache-tvm and apache-tvm-ffi: later pairs crash in these two calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_tensorize_and_tune_context() -> None:
    # In a process of its own: what is guarded against is a segmentation fault.
    script = Path(__file__).with_name("toolchain_probe.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok main\n"), done.stderr
