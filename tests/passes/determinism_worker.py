"""Prints the lowered and scheduled TIR and the plan of a model with many near-equal kernels."""

from __future__ import annotations

import sys
from pathlib import Path

from graphc import frontend
from graphc.codegen.planner import plan
from graphc.codegen.schedule import schedule
from graphc.passes import pipeline
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.targets import load


def main() -> None:
    target = load.get("x86-64-v3")
    model = pipeline.graph(frontend.load(Path(sys.argv[1])), target)
    model = schedule(lower(layout(model, target), target), target)
    print(model.mod.script())
    print(plan(model, "main"))


if __name__ == "__main__":
    main()
