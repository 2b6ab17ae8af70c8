"""Where the time of a run goes: `graphc bench --kernels`, a roofline of each kernel.

A kernel can do no more than min(peak, bandwidth * operations per byte) operations in a second,
bytes being those of all its tensors. Shares above 1 of the bandwidth mean that the caches helped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from graphc import module, testing
from graphc.native import KernelTime
from graphc.testing import Array


@dataclass(frozen=True)
class Row:
    """All calls of one kernel in one run: seconds, operations (None: not counted) and bytes."""

    kernel: str
    template: str
    calls: int
    seconds: float
    fastest: float
    flops: int | None
    bytes: int

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second."""
        return None if self.flops is None else self.flops / self.seconds / 1e9

    @property
    def gbs(self) -> float:
        """Billions of bytes per second."""
        return self.bytes / self.seconds / 1e9

    def record(self, total: float, peak_gflops: float, read_gbs: float) -> dict[str, object]:
        """As JSON has it, with the shares of the run's time and of the machine's limits."""
        of_peak = None if self.gflops is None else self.gflops / peak_gflops
        return asdict(self) | {
            "share_of_time": self.seconds / total,
            "share_of_peak": of_peak,
            "share_of_bandwidth": self.gbs / read_gbs,
        }


def measure(
    directory: Path,
    dims: Mapping[str, int],
    inputs: Mapping[str, Array],
    *,
    threads: int,
    runs: int = 20,
) -> tuple[Row, ...]:
    """The kernels of `main`, slowest first: means over some runs after a first one."""
    with module.load(directory, threads=threads) as loaded:
        feeds = testing.feeds(loaded.inputs, dims, inputs)
        names = [port.name for port in loaded.outputs]
        loaded.run(names, feeds)
        read = loaded.profile()
        for _ in range(runs):
            loaded.run(names, feeds)
        templates = {kernel.name: kernel.template for kernel in loaded.manifest.kernels}
        return summed(read(), templates)


def summed(times: Sequence[KernelTime], templates: Mapping[str, str]) -> tuple[Row, ...]:
    """One row for each kernel's name."""
    groups: dict[str, list[KernelTime]] = {}
    for time in times:
        groups.setdefault(time.kernel, []).append(time)
    rows = [
        Row(
            kernel=name,
            template=templates.get(name, ""),
            calls=len(group),
            seconds=sum(t.nanoseconds / t.calls for t in group) / 1e9,
            fastest=sum(t.fastest for t in group) / 1e9,
            flops=_total([t.flops for t in group]),
            bytes=sum(t.bytes for t in group),
        )
        for name, group in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def table(rows: Sequence[Row], peak_gflops: float, read_gbs: float) -> list[tuple[str, ...]]:
    """Cells to print: of the time, of the peak, of the bandwidth, and what bounds the kernel."""
    head = ("kernel", "template", "calls", "us", "time", "GFLOP/s", "of peak", "GB/s", "of read")
    total = sum(row.seconds for row in rows)
    cells: list[tuple[str, ...]] = [(*head, "bound by")]
    for row in rows:
        rate, peak = "-", "-"
        bound = "memory"
        if row.gflops is not None:
            rate, peak = f"{row.gflops:.0f}", f"{row.gflops / peak_gflops:.0%}"
            if row.flops is not None and row.flops * read_gbs > row.bytes * peak_gflops:
                bound = "arithmetic"
        cells.append(
            (
                row.kernel,
                row.template or "-",
                str(row.calls),
                f"{1e6 * row.seconds:.1f}",
                f"{row.seconds / total:.1%}",
                rate,
                peak,
                f"{row.gbs:.1f}",
                f"{row.gbs / read_gbs:.0%}",
                bound,
            )
        )
    return cells
