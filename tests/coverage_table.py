"""Measures the toy architectures against torch eager; keeps results and the table of them.

export PYTHONPATH=tests/codegen
    python tests/coverage_table.py              compare all with the results on file
python tests/coverage_table.py --write      measure all, write the results and the table
python tests/coverage_table.py --write GPT-2 BERT      these only
python tests/coverage_table.py --print      the table of the results on file
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from architectures import ARCHITECTURES, Architecture, export
from plan_runner import Compiled

from graphc import frontend, testing
from graphc.errors import GraphcError
from graphc.frontend.torch_export import load_program
from graphc.frontend.torch_export.program import quiet
from graphc.ir import Model
from graphc.passes import pipeline
from graphc.targets import load as targets
from graphc.verify import round_up

RESULTS = Path(__file__).with_name("architecture_results.json")
PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
BEGIN, END = "<!-- architectures: generated -->", "<!-- architectures: end -->"
TOLERANCE = 1e-4
_PRODUCTS = ("matmul", "bmm", "einsum", "baddbmm")
_ON_THE_WAY = ("dropout", "to", "type_as", "contiguous", "view", "reshape", "expand", "alias",
               "_assert_tensor_metadata", "clone", "slice", "_to_copy")  # fmt: skip


@dataclass(frozen=True)
class Result:
    """`torch_export` and `onnx` are "ok" or what stands in the way; `max_error` is rounded up."""

    name: str
    torch_export: str
    max_error: float | None = None
    attention: str = ""
    onnx: str = ""


def measure(architecture: Architecture, onnx: bool = False) -> Result:
    """Exports, compiles and compares one architecture at its shapes."""
    name = architecture.name
    onnx_result = _by_onnx(architecture) if onnx else ""
    try:
        with quiet():
            exported = export(architecture)
    except Exception as error:  # noqa: BLE001  whatever the model's code provokes
        return Result(name, f"torch.export: {_short(error)}", onnx=onnx_result)
    try:
        model = pipeline.graph(load_program(exported), targets.get("host"))
        error = _error(architecture, model)
    except GraphcError as error:
        return Result(name, _short(error), onnx=onnx_result)
    found = int(model.statistics.get("recognise_attention", 0))
    total = _attentions(exported)
    verdict = "ok" if error <= TOLERANCE else "wrong numbers"
    return Result(name, verdict, round_up(error), f"{min(found, total)}/{total}", onnx_result)


def _error(architecture: Architecture, model: Model) -> float:
    """The largest difference from eager over all shapes, in units of graphc.testing.compare."""
    compiled = Compiled(model)
    module = architecture.build()
    worst = 0.0
    for batch, length in architecture.shapes:
        inputs = architecture.inputs(batch, length)
        with quiet(), torch.no_grad():
            result = module(**inputs)
        leaves = torch.utils._pytree.tree_leaves(result)
        wanted = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ports = compiled.plan.signature.inputs
        actual = compiled([inputs[port.name].numpy() for port in ports])
        assert len(actual) == len(wanted), (architecture.name, len(actual), len(wanted))
        for got, want in zip(actual, wanted, strict=True):
            worst = max(worst, testing.compare(np.asarray(got), want).worst)
    return worst


def _attentions(exported: torch.export.ExportedProgram) -> int:
    """Scaled dot products, and softmaxes that end in a matrix product."""
    count = 0
    for node in exported.graph.nodes:
        short = _operator(node)
        if short == "scaled_dot_product_attention":
            count += 1
        elif short in ("softmax", "_softmax"):
            pending = list(node.users)
            while pending:
                user = pending.pop()
                if _operator(user) in _PRODUCTS:
                    count += 1
                    break
                if _operator(user) in _ON_THE_WAY:
                    pending.extend(user.users)
    return count


def _operator(node: torch.fx.Node) -> str:
    parts = str(node.target).split(".")
    return parts[1] if parts[0] == "aten" else ""


def _by_onnx(architecture: Architecture) -> str:
    """The same model through torch.onnx.export(dynamo=True) and the ONNX importer."""
    inputs = architecture.inputs(2, 7)
    dynamic = {name: dict(architecture.dynamic.get(name, {})) for name in inputs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            with quiet(), torch.no_grad():
                torch.onnx.export(
                    architecture.build(), (), path, kwargs=inputs, dynamic_shapes=dynamic,
                    dynamo=True, optimize=True, verbose=False, external_data=False,
                )  # fmt: skip
        except Exception as error:  # noqa: BLE001  whatever the exporter raises
            return f"torch.onnx: {_short(error)}"
        try:
            model = pipeline.graph(frontend.load(path), targets.get("host"))
            error = _error(architecture, model)
        except GraphcError as error:
            return _short(error)
    return "ok" if error <= TOLERANCE else f"wrong numbers: {error:.1e}"


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    headline = "does not compile" in lines[0] or "Constraints violated" in lines[0]
    line = (lines[1] if len(lines) > 1 and headline else lines[0]).removeprefix("- ")
    line = line.partition(". If you")[0]
    return f"{line[:117]}..." if len(line) > 120 else line


# -- results and table ---------------------------------------------------------------------


def read() -> dict[str, Result]:
    records = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {record["name"]: Result(**record) for record in records}


def write(results: Iterable[Result]) -> None:
    known = {**(read() if RESULTS.exists() else {}), **{r.name: r for r in results}}
    ordered = [asdict(known[a.name]) for a in ARCHITECTURES if a.name in known]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table(results: Iterable[Result]) -> str:
    lines = [
        "| architecture | torch.export | largest error | attention recognised | torch.onnx |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        error = "" if result.max_error is None else f"{result.max_error:g}"
        cells = (result.name, result.torch_export, error, result.attention, result.onnx)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def written_in_page() -> str:
    """The table between the page's markers."""
    _, old, _ = _parts()
    return old.strip()


def write_page() -> None:
    """Put the results on file between the page's markers."""
    head, _, tail = _parts()
    PAGE.write_text(f"{head}{BEGIN}\n{table(read().values())}\n{END}{tail}", encoding="utf-8")


def _parts() -> tuple[str, str, str]:
    text = PAGE.read_text(encoding="utf-8")
    assert BEGIN in text and END in text, f"{PAGE.name} has no block {BEGIN}"
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    return head, old, tail


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--print", action="store_true", dest="show")
    parser.add_argument("--no-onnx", action="store_true", help="leave out the route through ONNX")
    options = parser.parse_args(arguments)
    if options.show:
        print(table(read().values()))
        return 0
    chosen = [a for a in ARCHITECTURES if not options.names or a.name in options.names]
    known = read() if RESULTS.exists() else {}
    different = 0
    for architecture in chosen:
        result = measure(architecture, onnx=not options.no_onnx)
        print(result, flush=True)
        if options.write:
            if options.no_onnx and architecture.name in known:
                result = Result(**{**asdict(result), "onnx": known[architecture.name].onnx})
            write([result])
        elif not same(result, known.get(architecture.name)):
            different += 1
            print(f"  was {known.get(architecture.name)}")
    if options.write:
        write_page()
    return 1 if different else 0


def same(result: Result, known: Result | None) -> bool:
    """Equal but for the error, which differs with the machine's vectors."""
    return known is not None and (result.torch_export, result.attention) == (
        known.torch_export,
        known.attention,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
