"""Measures an artifact, and other runtimes beside it, in turns on the same inputs and threads."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from graphc import kernel_times, module, testing, work
from graphc import peers as other_runtimes
from graphc.codegen import link
from graphc.errors import ToolError
from graphc.targets import detect
from graphc.targets import load as targets
from graphc.testing import Array

# Each side runs in blocks of this length in turns; a pause lets the other's threads fall asleep.
_BLOCK_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.03
_PROBE_SECONDS: Final = 0.2
_PROBE_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Side:
    """One runtime's times of one run in seconds: median, and the 10th and 90th percentile."""

    name: str
    median: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True)
class Result:
    """`flops` of one run is None when nothing says it; peaks are measured, not looked up."""

    dims: Mapping[str, int]
    threads: int
    sides: tuple[Side, ...]
    flops: int | None
    peak_gflops: float
    read_gbs: float
    kernels: tuple[kernel_times.Row, ...] = ()

    def share(self, side: Side) -> float | None:
        """Of the measured FMA peak."""
        if self.flops is None:
            return None
        return self.flops / side.median / (self.peak_gflops * 1e9)

    def record(self) -> dict[str, object]:
        sides = [asdict(side) | {"share_of_peak": self.share(side)} for side in self.sides]
        total = sum(row.seconds for row in self.kernels)
        kernels = [row.record(total, self.peak_gflops, self.read_gbs) for row in self.kernels]
        return {
            "dims": dict(self.dims),
            "threads": self.threads,
            "flops": self.flops,
            "peak_gflops": self.peak_gflops,
            "read_gb_per_s": self.read_gbs,
            "sides": sides,
            "kernels": kernels,
        }


def bench(
    directory: Path,
    dims: Mapping[str, int],
    inputs: Mapping[str, Array],
    *,
    against: Path | None = None,
    peers: Sequence[str] = ("onnxruntime",),
    kernels: bool = False,
    threads: int | None = None,
    seconds: float = 5.0,
) -> Result:
    """Time runs of the artifact and, with `against`, of that file by each peer, for `seconds` each.

    With `kernels` some further runs are timed kernel by kernel.
    """
    threads = threads or detect.machine().cores
    peak_gflops, read_gbs = peak(threads)
    with module.load(directory, threads=threads) as loaded:
        feeds = testing.feeds(loaded.inputs, dims, inputs)
        names = [port.name for port in loaded.outputs]
        sides: dict[str, Callable[[], object]] = {"graphc": lambda: loaded.run(names, feeds)}
        if against is not None:
            for name in peers:
                sides[name] = functools.partial(other_runtimes.make(name, against, threads), feeds)
        measured = measure(sides, seconds)
        sizes = testing.dims_of(loaded.inputs, feeds)
        formula = loaded.functions["main"].work if "main" in loaded.functions else None
    flops = None if formula is None else work.value(formula, sizes)
    rows = kernel_times.measure(directory, dims, inputs, threads=threads) if kernels else ()
    return Result(sizes, threads, measured, flops, peak_gflops, read_gbs, rows)


def measure(sides: Mapping[str, Callable[[], object]], seconds: float) -> tuple[Side, ...]:
    """Run the sides in turns until each had its time; the first run of a block does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for call in sides.values():
        call()
    deadline = time.perf_counter() + seconds * len(sides)
    while True:
        for name, call in sides.items():
            time.sleep(_PAUSE_SECONDS)
            call()
            block = time.perf_counter() + min(_BLOCK_SECONDS, seconds)
            while True:
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                times[name].append(end - start)
                if end > block:
                    break
        if time.perf_counter() > deadline:
            return tuple(_side(name, values) for name, values in times.items())


def _side(name: str, values: Sequence[float]) -> Side:
    ordered = sorted(values)
    low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.1, 0.9))
    return Side(name, statistics.median(ordered), low, high, len(ordered))


def _library() -> Path:
    """The probe, compiled for this machine's features; kept beside other compiled C code."""
    source = Path(__file__).with_name("bench_probe.c")
    host = targets.get("host")
    options = ["-std=c11", "-O3", "-ffp-contract=fast", f"-DLANES={host.lanes(32)}"]
    options += [f"-m{feature}" for feature in ("fma", "avx512f") if host.has(feature)]
    identity = (source.read_text(encoding="utf-8"), options, link.compiler_identity())
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:32]
    library = link.cache_directory() / "probe" / f"{digest}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        draft = library.with_suffix(f".{os.getpid()}")
        link.shared_library(source, draft, options)
        draft.replace(library)
    return library


def peak(threads: int) -> tuple[float, float]:
    """This machine's GFLOP/s of float32 multiply-adds and GB/s of reads, with so many threads."""
    probe = ctypes.CDLL(str(_library())).graphc_probe
    probe.restype = ctypes.c_double
    probe.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_size_t]
    rates = [probe(threads, _PROBE_SECONDS, size) for size in (0, _PROBE_BYTES // threads)]
    if min(rates) < 0:
        raise ToolError(f"the machine's peak cannot be measured with {threads} threads")
    return rates[0] / 1e9, rates[1] / 1e9
