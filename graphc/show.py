"""What the command line prints: tables, trees, JSON and the progress of a compile."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc import kernel_times
from graphc.testing import Array

if TYPE_CHECKING:
    from graphc.bench import Result
    from graphc.check import Report as Check
    from graphc.compiler import Artifact
    from graphc.errors import Blocker
    from graphc.ir import Dim
    from graphc.passes.structure import AttentionInfo
    from graphc.verify import Report


class Progress:
    """Stages of long work on standard error: a moving line on a terminal, plain lines elsewhere."""

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        self._check = check  # called at every stage, to raise when the user has had enough
        self._moving = sys.stderr.isatty()
        self._start = time.perf_counter()

    def __enter__(self) -> Progress:
        return self

    def __call__(self, stage: str) -> None:
        if self._check is not None:
            self._check()
        seconds = time.perf_counter() - self._start
        if self._moving:
            print(f"\r\x1b[K{seconds:5.1f} s  {stage} ...", end="", file=sys.stderr, flush=True)
        else:
            print(f"{seconds:5.1f} s  {stage}", file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._moving:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def as_json(record: object) -> str:
    return json.dumps(record, indent=2, sort_keys=False, allow_nan=False)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns; the first row is the head."""
    listed = [list(row) for row in rows]
    widths = [max(len(row[k]) for row in listed) for k in range(len(listed[0]))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in listed)
    return "\n".join(line.rstrip() for line in lines)


def tree(record: Mapping[str, Any], indent: str = "") -> str:
    """Nested plain data as indented lines: a line for each element of a list of objects."""
    lines = []
    for key, value in record.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{key}:\n{tree(value, indent + '  ')}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines += [f"{indent}{key}:", *(_item(item, indent + "  ") for item in value)]
        else:
            lines.append(f"{indent}{key}: {_flat(value)}")
    return "\n".join(lines)


def _item(item: Mapping[str, Any], indent: str) -> str:
    """One line when nothing in it is nested."""
    nested = any(isinstance(v, list) and v and isinstance(v[0], Mapping) for v in item.values())
    if not nested:
        return indent + _flat(item)
    first, *others = tree(item, indent + "  ").split("\n")
    return "\n".join((f"{indent}- {first.lstrip()}", *others))


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return "  ".join(f"{k}={_flat(v)}" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return "[" + ", ".join(_flat(item) for item in value) + "]" if value else "none"
    return "none" if value is None else str(value)


def blockers(found: Sequence[Blocker]) -> str:
    """A row for each; what is not about a node has no operator."""
    rows = [("node", "operator", "domain", "opset", "why", "repair")]
    for b in found:
        opset = "" if b.opset is None else str(b.opset)
        rows.append((b.node, b.operator, b.domain, opset, b.why, b.repair))
    return table(rows)


def checked(report: Check) -> str:
    """Ports, size, work, structure and what the target makes of it."""
    record = report.record()
    signature, structure, kernels = report.signature, report.structure, report.kernels
    assert signature is not None and structure is not None and kernels is not None
    rows = [("", "name", "dtype", "shape")]
    for kind, ports in (("input", signature.inputs), ("output", signature.outputs)):
        rows += [(kind, p.name, p.dtype, ", ".join(map(str, p.shape))) for p in ports]
    weights = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in structure.weights.items())
    facts = [
        ("dimensions", ", ".join(_bounds(dim) for dim in signature.dims) or "all fixed"),
        ("parameters", f"{record['parameters']:,} ({weights or 'none'})"),
        ("work", _work(record["flops"])),
        *(("attention", _attention(info)) for info in structure.attention),
        ("causal", structure.causal or "no attention"),
        ("norms", _times(structure.norms)),
        ("mlp", _times(structure.mlps)),
        ("kernels", f"{_times(kernels.templates)} for {kernels.target}"),
        ("decomposed", ", ".join(kernels.decomposed) or "none"),
        ("generic products", ", ".join(kernels.generic_products) or "none"),
    ]
    if structure.unrecognised:
        facts.append(("attention", f"{structure.unrecognised} in a form that is not recognised"))
    return f"{table(rows)}\n\n{table(facts)}\nok: every operator is supported"


def _bounds(dim: Dim) -> str:
    return f"{dim.name} {dim.lower}..{'' if dim.upper is None else dim.upper}"


def _work(flops: Any) -> str:
    value = flops["value"]
    return f"{flops['formula']} FLOP" if value is None else f"{value / 1e9:.3f} GFLOP"


def _attention(info: AttentionInfo) -> str:
    words = [
        f"{info.layers} x {info.kind}{', cross' if info.cross else ''}",
        f"{info.heads} heads of {info.head_size}",
        f"{info.kv_heads} for keys" if info.kv_heads != info.heads else "",
        f"values of {info.value_size}" if info.value_size != info.head_size else "",
        f"mask {info.mask}",
        f"rotary by {info.rotary}" if info.rotary else "",
        f"cache {info.cache}",
    ]
    return ", ".join(filter(None, words))


def _times(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "none"


def compiled_record(artifact: Artifact) -> dict[str, object]:
    return {
        "path": str(artifact.path),
        "cached": artifact.cached,
        "target": artifact.manifest.target.name,
        "kernels": len(artifact.manifest.kernels),
        "weights_bytes": artifact.manifest.weights.size,
        "numerics": artifact.manifest.numerics,
        "quality": artifact.manifest.quality,
    }


def compiled(artifact: Artifact) -> str:
    manifest = artifact.manifest
    numerics = manifest.numerics
    if numerics is None:
        verified = "not verified"
    else:
        worst = max(o["max_abs"] for case in numerics["cases"] for o in case["outputs"])
        verified = f"verified on {len(numerics['cases'])} shapes, max abs error {worst:.0e}"
    how = "from the cache" if artifact.cached else f"{len(manifest.kernels)} kernels"
    size = manifest.weights.size / 1e6
    lines = [f"{artifact.path}: {how}, {size:.1f} MB of weights, {verified}"]
    return "\n".join(lines + quality_lines(manifest.quality))


def quality_lines(quality: Mapping[str, Any] | None, layers: int = 5) -> list[str]:
    """What quantisation cost: every output, and the layers that it hurt most."""
    if quality is None:
        return []
    worst = quality["layers"][:layers]
    rows = [("compared with float", "cosine", "error")]
    rows += [
        (f"{kind} {d['name']}", f"{d['cosine']:.6f}", f"{d['error']:.1%}")
        for kind, distances in (("output", quality["outputs"]), ("layer", worst))
        for d in distances
    ]
    return [f"quantised: {quality['scheme']}", *table(rows).split("\n")]


def arrays_record(arrays: Mapping[str, Array]) -> dict[str, dict[str, object]]:
    return {name: _array_record(array) for name, array in arrays.items()}


def _array_record(array: Array) -> dict[str, object]:
    values = np.asarray(array).astype(np.float64)
    finite = values[np.isfinite(values)]
    summary = (
        {"min": finite.min(), "mean": finite.mean(), "max": finite.max()} if finite.size else {}
    )
    return {
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        **{key: float(f"{value:.7g}") for key, value in summary.items()},
        "not_finite": int(values.size - finite.size),
    }


def arrays_rows(records: Mapping[str, Mapping[str, object]]) -> list[tuple[str, ...]]:
    head = ("output", "dtype", "shape", "min", "mean", "max", "not finite")
    rows: list[tuple[str, ...]] = [head]
    for name, r in records.items():
        shape = "x".join(str(n) for n in r["shape"]) or "scalar"  # type: ignore[attr-defined]
        low, mean, high = (str(r.get(key, "-")) for key in ("min", "mean", "max"))
        rows.append((name, str(r["dtype"]), shape, low, mean, high, str(r["not_finite"])))
    return rows


def report_rows(report: Report) -> list[tuple[str, ...]]:
    head = ("dims", "output", "max abs", "max rel", "cosine", "worst", "allowed", "")
    rows: list[tuple[str, ...]] = [head]
    for case in report.cases:
        dims = " ".join(f"{name}={value}" for name, value in case.dims.items()) or "fixed"
        for o in case.outputs:
            figures = (f"{o.max_abs:.2e}", f"{o.max_rel:.2e}", f"{o.cosine:.8f}", f"{o.worst:.2e}")
            rows.append((dims, o.name, *figures, f"{o.limit:.0e}", "ok" if o.passed else "WRONG"))
    return rows


def bench(result: Result) -> str:
    head = ("runtime", "median ms", "p10 ms", "p90 ms", "GFLOP/s", "share of peak")
    rows: list[tuple[str, ...]] = [head]
    for side in result.sides:
        times = (f"{1e3 * t:.3f}" for t in (side.median, side.low, side.high))
        share = result.share(side)
        if share is None:
            rows.append((side.name, *times, "-", "-"))
        else:
            rate = share * result.peak_gflops
            rows.append((side.name, *times, f"{rate:.1f}", f"{100 * share:.1f} %"))
    dims = " ".join(f"{name}={value}" for name, value in result.dims.items()) or "fixed shapes"
    work = "" if result.flops is None else f", {result.flops / 1e9:.2f} GFLOP per run"
    text = (
        f"{dims}, {result.threads} threads{work}; this machine: "
        f"f32 FMA peak {result.peak_gflops:.0f} GFLOP/s, read {result.read_gbs:.1f} GB/s\n"
        f"{table(rows)}"
    )
    ours, *others = result.sides
    for theirs in others:
        text += f"\n{ours.name} takes {ours.median / theirs.median:.2f} of {theirs.name}'s time"
    if result.kernels:
        rows = kernel_times.table(result.kernels, result.peak_gflops, result.read_gbs)
        text += f"\n\n{table(rows)}"
    return text
