"""Runs an artifact for another machine under qemu's user-mode emulation, through its graphc-run.

It proves numbers, and that no instruction is used which the device lacks (such a one is an illegal
instruction here too); it says nothing about speed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from graphc import artifact
from graphc.artifact import FunctionInfo, PortInfo
from graphc.errors import ArtifactError, InputError, ToolError, VerificationError

Array = npt.NDArray[Any]

_TIMEOUT_SECONDS: Final = 900
_WRONG_INPUT: Final = 2  # graphc-run's exit status


def emulator(machine: str) -> str | None:
    """The path of the program that runs static executables of this machine, if it is installed."""
    return shutil.which(f"qemu-{machine}") or shutil.which(f"qemu-{machine}-static")


class EmulatedModule:
    """An artifact for another machine, with the part of graphc.Module that verifying needs.

    `cpu` is qemu's name of the model to emulate: "" is one with everything that qemu knows.
    """

    largest_dimension = 48
    """Emulation is some hundred times slower than the device: edge shapes stay this small."""

    def __init__(self, directory: Path, cpu: str = "") -> None:
        self.directory, self.cpu = directory, cpu or "max"
        self.manifest = artifact.read_manifest(directory)
        machine = self.manifest.target.machine
        found = emulator(machine)
        if found is None:
            raise ArtifactError(
                f"{directory} was compiled for {machine} and qemu-{machine} is not installed: "
                "install qemu-user to run it here, or run it on the device"
            )
        self._emulator = found
        self.functions: Mapping[str, FunctionInfo] = MappingProxyType(
            {function.name: function for function in self.manifest.functions}
        )

    @property
    def inputs(self) -> tuple[PortInfo, ...]:
        return self._main.inputs

    @property
    def outputs(self) -> tuple[PortInfo, ...]:
        return self._main.outputs

    def infer_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Nothing: graphc-run does not say shapes without running."""
        del shapes
        return {}

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of one run, as graphc.Module.run gives them."""
        names = [port.name for port in self.outputs] if output_names is None else output_names
        with tempfile.TemporaryDirectory(prefix="graphc-emulation-") as folder:
            work = Path(folder)
            arguments: list[str] = []
            for number, (name, value) in enumerate(feeds.items()):
                np.save(work / f"{number}.npy", np.ascontiguousarray(value), allow_pickle=False)
                arguments += ["--input", f"{name}={number}.npy"]
            output = work / "outputs"
            output.mkdir()
            self._call([*arguments, "--output", str(output)], work)
            return [np.load(output / _file_name(name), allow_pickle=False) for name in names]

    def _call(self, arguments: Sequence[str], work: Path) -> None:
        directory = self.directory.resolve()
        program = [self._emulator, "-cpu", self.cpu, str(directory / artifact.RUNNER)]
        try:
            done = subprocess.run(
                [*program, str(directory), *arguments],
                cwd=work,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise VerificationError(
                f"no answer within {_TIMEOUT_SECONDS} s under {Path(self._emulator).name}: "
                "give smaller dimensions with --dim"
            ) from error
        if done.returncode == 0:
            return
        text = done.stderr.strip().removeprefix("graphc-run: ")
        if done.returncode == _WRONG_INPUT:
            raise InputError(text)
        if done.returncode in (-signal.SIGILL, 128 + signal.SIGILL):
            raise VerificationError(
                f"a kernel uses an instruction that a {self.cpu} does not have: "
                "the target's features and its qemu_cpu do not fit each other"
            )
        raise ToolError(f"{Path(self._emulator).name} -cpu {self.cpu}: {text or done.returncode}")

    @property
    def _main(self) -> FunctionInfo:
        return self.functions.get("main") or next(iter(self.functions.values()))

    def __enter__(self) -> EmulatedModule:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held open."""


def _file_name(output: str) -> str:
    """Where graphc-run writes an output: a name cannot choose another directory."""
    return output.replace("/", "_") + ".npy"
