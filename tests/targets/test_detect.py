"""What `host` is, from made-up /proc and /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphc.errors import ConfigError
from graphc.targets import detect, load

V2 = "fpu sse sse2 pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm"
V3 = f"{V2} avx avx2 fma f16c bmi1 bmi2 abm movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


def tree(root: Path, flags: str, cores: list[tuple[int, int]]) -> Path:
    """A machine with those CPU flags and one (package, core) for each logical CPU."""
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    for number, (package, core) in enumerate(cores):
        cpu = root / f"sys/devices/system/cpu/cpu{number}"
        (cpu / "topology").mkdir(parents=True)
        (cpu / "topology/physical_package_id").write_text(f"{package}\n")
        (cpu / "topology/core_id").write_text(f"{core}\n")
        levels = [("Data", 1, "48K"), ("Instruction", 1, "64K"), ("Unified", 2, "2048K")]
        for index, (kind, level, size) in enumerate(levels):
            (cpu / f"cache/index{index}").mkdir(parents=True)
            (cpu / f"cache/index{index}/type").write_text(kind)
            (cpu / f"cache/index{index}/level").write_text(str(level))
            (cpu / f"cache/index{index}/size").write_text(size)
    return root


@pytest.mark.parametrize(
    ("flags", "level", "extra"),
    [
        (V2, "x86-64-v2", set()),
        (f"{V2} avx", "x86-64-v2", set()),
        (V3, "x86-64-v3", set()),
        (f"{V3} avx_vnni", "x86-64-v3-avxvnni", set()),
        (V4, "x86-64-v4", set()),
        (f"{V4} avx512_vnni", "x86-64-v4-vnni", set()),
        (f"{V4} avx512_vnni avx512_bf16", "x86-64-v4-bf16", set()),
        (f"{V4} avx512_bf16 avx512vbmi", "x86-64-v4", {"avx512bf16", "avx512vbmi"}),
        (f"{V4} avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16", "x86-64-amx", set()),
    ],
)
def test_host_is_the_highest_base_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, level: str, extra: set[str]
) -> None:
    monkeypatch.setattr(detect.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(detect.os, "sched_getaffinity", lambda _: {0})
    found = detect.machine(tree(tmp_path, flags, [(0, 0)]))
    monkeypatch.setattr(detect, "machine", lambda: found)
    host = load.get("host")
    base = load.get(level)
    assert host.features == base.features | extra
    attributes = {str(a) for a in host.tvm_dict().get("mattr", [])}
    assert attributes >= {f"+{feature}" for feature in extra}
    assert ("bfloat16" in host.dtypes) == host.has("avx512bf16") == ("avx512_bf16" in flags)
    assert (host.l1, host.l2, host.l3) == (48 << 10, 2 << 20, base.l3)


def test_siblings_are_one_core_and_affinity_counts(tmp_path: Path) -> None:
    cores = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0)]
    cpu = tree(tmp_path, V3, cores) / "sys/devices/system/cpu"
    assert detect.physical_cores(cpu, [0, 1, 2, 3, 4]) == 3
    assert detect.physical_cores(cpu, [0, 2]) == 1
    assert detect.physical_cores(tmp_path / "nowhere", [0, 1, 2]) == 3


def test_a_foreign_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect.platform, "machine", lambda: "riscv64")
    found = detect.machine(tree(tmp_path, "", [(0, 0)]))
    monkeypatch.setattr(detect, "machine", lambda: found)
    with pytest.raises(ConfigError, match="riscv64"):
        load.get("host")
