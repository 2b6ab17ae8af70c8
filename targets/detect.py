"""Finds out what the machine that this runs on has: features, physical cores, cache sizes."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Linux's names in /proc/cpuinfo where LLVM's differ by more than a dropped underscore.
_RENAMED: Final = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "lahf_lm": "sahf",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
}

# Features beyond the base targets that kernels may use, and the dtype each makes fast.
EXTRAS: Final[dict[str, str]] = {
    "avxvnni": "",
    "avx512vnni": "",
    "avx512vbmi": "",
    "avx512vbmi2": "",
    "avx512bf16": "bfloat16",
    "avx512fp16": "float16",
}


@dataclass(frozen=True)
class Machine:
    """A detected machine; `caches` maps level to bytes: of one core for 1 and 2, shared for 3."""

    machine: str
    features: frozenset[str]
    cores: int
    caches: dict[int, int]

    @property
    def extras(self) -> frozenset[str]:
        return self.features & EXTRAS.keys()


def machine(root: Path = Path("/")) -> Machine:
    """Read /proc/cpuinfo and /sys under `root`, honouring the process's CPU affinity."""
    allowed = sorted(os.sched_getaffinity(0))
    cpu = root / "sys/devices/system/cpu"
    return Machine(
        machine=platform.machine(),
        features=_features(root / "proc/cpuinfo"),
        cores=physical_cores(cpu, allowed),
        caches=_caches(cpu / f"cpu{allowed[0]}" / "cache"),
    )


def _features(cpuinfo: Path) -> frozenset[str]:
    for line in _text(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            return frozenset(_RENAMED.get(f, f.replace("_", "")) for f in value.split())
    return frozenset()


def physical_cores(cpu: Path, allowed: list[int]) -> int:
    """How many distinct cores the allowed CPUs lie on; siblings of one core count once."""
    cores = set()
    for number in allowed:
        topology = cpu / f"cpu{number}" / "topology"
        package, core = (_text(topology / f) for f in ("physical_package_id", "core_id"))
        cores.add((package, core) if core else number)
    return len(cores)


def _caches(folder: Path) -> dict[int, int]:
    sizes = {}
    for index in sorted(folder.glob("index*")):
        kind, level, size = (_text(index / f) for f in ("type", "level", "size"))
        if kind in {"Data", "Unified"} and level.isdecimal() and size.endswith(("K", "M")):
            sizes[int(level)] = int(size[:-1]) << (10 if size.endswith("K") else 20)
    return sizes


def _text(path: Path) -> str:
    """A file of /proc or /sys; containers and virtual machines may hide it, then it is empty."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
