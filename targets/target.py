"""What the compiler knows of one device: plain data, no TVM object and no code per device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from graphc.errors import ConfigError

DEVICE_KINDS = ("opencl", "vulkan")

TvmValue: TypeAlias = "str | int | tuple[str, ...]"


@dataclass(frozen=True)
class Link:
    """How a library for the device is linked: `triple` and oldest `glibc` it must load on."""

    triple: str
    glibc: str


@dataclass(frozen=True)
class Device:
    """An accelerator beside the CPU: kernels run on it, the host program stays on the CPU.

    `kind` names the back end ("opencl"); `max_threads` is how many threads a work-group may have,
    `shared_bytes` how much memory they may share. The runtime asks the real device for its limits.
    """

    kind: str
    max_threads: int
    shared_bytes: int

    def __post_init__(self) -> None:
        if self.kind not in DEVICE_KINDS:
            known = ", ".join(DEVICE_KINDS)
            raise ConfigError(f"device.kind = {self.kind!r}: there is no such back end ({known})")
        if self.max_threads < 16 or self.max_threads & (self.max_threads - 1):
            raise ConfigError(
                f"device.max_threads = {self.max_threads}: expected a power of two from 16 up"
            )
        if self.shared_bytes < 1024:
            raise ConfigError(f"device.shared_bytes = {self.shared_bytes}: expected 1024 or more")


@dataclass(frozen=True)
class Target:
    """One device.

    Cache sizes are in bytes: `l1` and `l2` of one core, `l3` shared by all; 0 means none.
    `features` use LLVM's names (without the plus); `dtypes` are those with fast arithmetic.
    `threads` is what kernels are divided for by default, the physical cores of a detected host.
    `vector_bits` is the width of a vector register, `vector_registers` how many an instruction can
    name. `qemu_cpu` is the model that qemu's user-mode emulation takes for the device's CPU.
    `device` is the accelerator that kernels run on, None when they run on the CPU itself.
    """

    name: str
    description: str
    machine: str
    features: frozenset[str]
    vector_bits: int
    vector_registers: int
    threads: int
    l1: int
    l2: int
    l3: int
    dtypes: frozenset[str]
    link: Link
    tvm: Mapping[str, TvmValue] = field(hash=False)
    qemu_cpu: str = ""
    device: Device | None = None

    def __post_init__(self) -> None:
        if self.vector_bits < 64 or self.vector_bits & (self.vector_bits - 1):
            raise ConfigError(
                f"target {self.name}: vector_bits = {self.vector_bits}, "
                "expected a power of two from 64 up"
            )
        if self.vector_registers < 8:
            raise ConfigError(
                f"target {self.name}: vector_registers = {self.vector_registers}, "
                "expected 8 or more"
            )
        if self.threads < 1:
            raise ConfigError(f"target {self.name}: threads = {self.threads}, expected at least 1")
        if min(self.l1, self.l2, self.l3) < 0:
            raise ConfigError(f"target {self.name}: a cache size is below 0")
        object.__setattr__(self, "tvm", MappingProxyType(dict(self.tvm)))

    def has(self, feature: str) -> bool:
        """Whether the device has an instruction-set extension, by LLVM's name."""
        return feature in self.features

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` bits fit one vector register."""
        return self.vector_bits // bits

    def tvm_dict(self) -> dict[str, str | int | list[str]]:
        """The dict that `tvm.target.Target` takes."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.tvm.items()}

    def record(self) -> dict[str, object]:
        """All of it as plain sorted data, for the manifest, for hashing and for printing."""
        return {
            "name": self.name,
            "description": self.description,
            "machine": self.machine,
            "features": sorted(self.features),
            "vector_bits": self.vector_bits,
            "vector_registers": self.vector_registers,
            "threads": self.threads,
            "l1": self.l1,
            "l2": self.l2,
            "l3": self.l3,
            "dtypes": sorted(self.dtypes),
            "link": {"triple": self.link.triple, "glibc": self.link.glibc},
            "tvm": self.tvm_dict(),
            "qemu_cpu": self.qemu_cpu,
            "device": None if self.device is None else asdict(self.device),
        }
