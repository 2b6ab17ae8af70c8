"""What `graphc check` reports: every blocker of a model, or what it takes, does and is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tvm import relax, tirx

from graphc import frontend
from graphc.codegen import flops
from graphc.codegen.expression import text
from graphc.codegen.kernel import is_contraction, read_kernel
from graphc.codegen.schedule import is_scheduled, schedule_function
from graphc.errors import Blocker, ModelError, blockers_of
from graphc.ir import Model, Port, Signature
from graphc.passes import pipeline
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.passes.quantized_products import quantized_products
from graphc.passes.structure import Structure, structure
from graphc.targets import load as targets
from graphc.work import value

Dims = Mapping[str, int | tuple[int, int | None]]


@dataclass(frozen=True)
class Kernels:
    """What a target makes of a model: kernels by template, composites that it takes apart, and
    products (of matrices, or convolutions) that run in generic loops."""

    target: str
    templates: Mapping[str, int]
    decomposed: tuple[str, ...]
    generic_products: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """`signature` and what follows are None when there are blockers.

    `work` is the record of the contractions' multiply-adds (see codegen/flops.py). With control
    flow, structure and work are those of the longest straight piece.
    """

    source: str
    blockers: tuple[Blocker, ...] = ()
    signature: Signature | None = None
    statistics: Mapping[str, int] | None = None
    structure: Structure | None = None
    work: Mapping[str, Any] | None = None
    kernels: Kernels | None = None

    @property
    def ok(self) -> bool:
        return not self.blockers

    def record(self, sizes: Mapping[str, int] | None = None) -> dict[str, object]:
        """Plain data; FLOPs as a number where `sizes` gives every dimension in them."""
        if self.signature is None:
            return {"ok": False, "blockers": [asdict(blocker) for blocker in self.blockers]}
        assert self.statistics is not None and self.structure is not None
        assert self.work is not None and self.kernels is not None
        signature = self.signature
        return {
            "ok": True,
            "blockers": [],
            "inputs": [_port(port) for port in signature.inputs],
            "outputs": [_port(port) for port in signature.outputs],
            "dims": [asdict(dim) for dim in signature.dims],
            "constraints": [
                f"{text(c.left)} == {text(c.right)}: {c.reason}" for c in signature.constraints
            ],
            "nodes": self.statistics.get("nodes", 0),
            "parameters": self.statistics.get("parameters", 0),
            "weights_bytes": self.statistics.get("bytes", 0),
            "flops": {"formula": self.work["text"], "value": value(self.work, sizes or {})},
            "structure": asdict(self.structure),
            "kernels": asdict(self.kernels),
        }


def check(source: str | Path, *, target: str = "host", dims: Dims | None = None) -> Report:
    """Everything but the code: imports the model, runs the passes, asks the templates.

    Raises ConfigError for bad arguments; whatever is wrong with the model is in the report.
    """
    device = targets.get(target)
    path = Path(source)
    if not path.exists():
        raise ModelError(f"no such model: {path}")
    try:
        model = frontend.load(path, dims=dims)
    except ModelError as error:
        return Report(str(source), blockers_of(error))
    model = pipeline.run((quantized_products,), pipeline.graph(model, device))
    longest = max(model.signatures, key=lambda name: _length(model.mod[name]))
    return Report(
        str(source),
        (),
        model.exported["main"],
        model.statistics,
        structure(model, longest),
        flops.count(model, longest).record(),
        _kernels(model, target),
    )


def _length(function: relax.Function) -> int:
    return sum(len(block.bindings) for block in function.body.blocks)


def _kernels(model: Model, target: str) -> Kernels:
    device = targets.get(target)
    lowered = lower(layout(model, device), device)
    templates: Counter[str] = Counter()
    generic: list[str] = []
    for gvar, function in lowered.mod.functions.items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        kernel = None if is_scheduled(function) else read_kernel(function, gvar.name_hint)
        if not is_scheduled(function):
            function = schedule_function(function, gvar.name_hint, device)
        template = str((function.attrs or {}).get("graphc.template", "none"))
        templates[template] += 1
        is_generic = template.startswith(("loops", "none"))
        if is_generic and kernel is not None and any(map(is_contraction, kernel.stages)):
            generic.append(gvar.name_hint)
    composites = {
        str(function.attrs["Composite"])
        for function in model.mod.functions.values()
        if function.attrs is not None and "Composite" in function.attrs
    }
    taken = {template.partition("/")[0] for template in templates}
    left = sorted(name for name in composites if name.rpartition(".")[2] not in taken)
    return Kernels(target, dict(templates.most_common()), tuple(left), tuple(sorted(generic)))


def _port(port: Port) -> dict[str, object]:
    shape = [dim if isinstance(dim, int) else text(dim) for dim in port.shape]
    record: dict[str, object] = {"name": port.name, "dtype": port.narrow or port.dtype}
    return {**record, "shape": shape, "value_range": port.value_range}
