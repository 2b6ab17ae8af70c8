"""ARM targets: the inner loop of the GEMM as code, and whole artifacts under qemu's emulation.

Emulation proves numbers, and that instructions which a CPU lacks are not used; it says nothing of
speed.
Install it with `apt install qemu-user`; without it those tests are skipped.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_models
from relax_models import make, op

from graphc import compiler
from graphc.codegen.cpu import build_module
from graphc.codegen.schedule import schedule_function
from graphc.emulation import EmulatedModule, emulator
from graphc.errors import ArtifactError, InputError
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.targets import load
from graphc.verify import verify

needs_qemu = pytest.mark.skipif(
    emulator("aarch64") is None, reason="qemu-aarch64 is missing: apt install qemu-user"
)


def inner_loop(assembly: str) -> list[str]:
    """The instructions of the loop with the most multiply-adds."""
    loops: list[list[str]] = [[]]
    for line in assembly.splitlines():
        if line.startswith(".LBB"):
            loops.append([])
        elif line.startswith("\t") and not line.startswith("\t."):
            loops[-1].append(line.strip())
            if re.match(r"\tb\.|\tcbn?z", line):
                loops.append([])
    return max(loops, key=lambda loop: sum("fmla" in instruction for instruction in loop))


@pytest.mark.parametrize("name", ["cortex-a53", "raspberrypi5"])
def test_gemm_keeps_its_block_in_registers(name: str) -> None:
    """8 x 12: 24 multiply-adds for 8 scalar and 3 vector loads, and nothing is stored."""
    device = load.get(name)
    weight = tiny_models.numpy_helper.to_array(tiny_models.weight("w", 64, 96))
    model = make({"x": (("m", 64), "float32")}, {"w": weight}, lambda _, x, w: op.matmul(x, w))
    lowered = lower(layout(model, device), device)
    functions = {
        gvar.name_hint: schedule_function(function, gvar.name_hint, device)
        for gvar, function in lowered.mod.functions.items()
        if gvar.name_hint.startswith("gemm")
    }
    loop = inner_loop(str(build_module(functions, device).inspect_source("asm")))
    kinds = [instruction.split()[0] for instruction in loop]
    steps, rest = divmod(kinds.count("fmla"), 24)  # LLVM unrolls for some cores
    assert steps >= 1 and not rest, loop
    assert not [kind for kind in kinds if kind.startswith("st")], loop
    assert sum(kind.startswith("ld") for kind in kinds) <= 11 * steps, loop


@needs_qemu
@pytest.mark.parametrize("name", ["cortex-a53", "raspberrypi5"])
def test_artifacts_are_verified_under_emulation(name: str, tmp_path: Path) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    artifact = compiler.compile(source, name, tmp_path / "mlp.gc")
    assert artifact.manifest.target.machine == "aarch64"
    assert artifact.manifest.numerics is not None and artifact.manifest.numerics["passed"]
    report = verify(tmp_path / "mlp.gc", source, {"batch": 13})
    assert report.passed


@needs_qemu
def test_a_cpu_that_lacks_a_feature_is_told_so(tmp_path: Path) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, "raspberrypi5", tmp_path / "mlp.gc", verify=False)
    older = EmulatedModule(tmp_path / "mlp.gc", "cortex-a53")
    with pytest.raises(InputError, match="which the kernels need"):
        older.run(None, {"x": tiny_models.np.zeros((2, 24), "float32")})


def test_without_the_emulator_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny_models.perceptron(tmp_path / "mlp.onnx")
    compiler.compile(source, "cortex-a53", tmp_path / "mlp.gc", verify=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ArtifactError, match="install qemu-user"):
        verify(tmp_path / "mlp.gc", source)
