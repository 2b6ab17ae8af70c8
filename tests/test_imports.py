"""Imports go one way (DESIGN section 1), and running an artifact imports no compiler."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import graphc

ROOT = Path(graphc.__file__).parent

# From left to right: a module may import its own rank and those before it. The longest name that
# fits counts: kernel templates stand left of the passes, which pack weights and lower for them.
RANKS = (
    ("errors",),
    (
        "env",
        "config",
        "weights_file",
        "manifest",
        "artifact",
        "testing",
        "work",
        "arrays",
        "native",
        "module",
        "emulation",
        "llm",
    ),
    ("targets", "tuning_logs"),
    ("ir", "flow", "sources", "frontend"),
    (
        "codegen.templates",
        "codegen.instructions",
        "codegen.builder",
        "codegen.kernel",
        "codegen.math",
        "codegen.rewrite",
    ),
    ("passes",),
    ("codegen",),
    (
        "reference",
        "torch_reference",
        "edges",
        "nudge",
        "verify",
        "verify_decoder",
        "locate",
        "peers",
        "kernel_times",
        "bench",
        "bench_llm",
        "inspection",
    ),
    ("quality", "text_quality", "trial", "cache", "compiler", "check"),
    ("show", "cli_llm", "cli", "__main__"),
)
# What makes running an artifact possible: nothing of it may lie right of its rank.
RUNTIME = RANKS[0] + RANKS[1]


def rank(name: str) -> int:
    """Of a module name without the leading `graphc.`."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for number, names in enumerate(RANKS):
            if ".".join(parts[:length]) in names:
                return number
    raise AssertionError(f"graphc.{name} has no rank: add it to RANKS in {Path(__file__).name}")


def modules() -> Iterator[tuple[str, Path]]:
    def walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and (path / "__init__.py").exists():
                yield from walk(path, f"{prefix}{path.name}.")
            elif path.suffix == ".py":
                name = prefix.removesuffix(".") if path.stem == "__init__" else prefix + path.stem
                yield name, path

    yield from ((name, path) for name, path in walk(ROOT, "") if name)


def imported(tree: ast.AST, known: Collection[str]) -> Iterator[str]:
    """graphc modules that a file imports anywhere but under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (a.name.removeprefix("graphc.") for a in node.names if "graphc." in a.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "graphc":
                yield from (a.name for a in node.names if a.name != "__version__")
            elif node.module and node.module.startswith("graphc."):
                package = node.module.removeprefix("graphc.")
                for alias in node.names:
                    inner = f"{package}.{alias.name}"
                    yield inner if inner in known else package
        else:
            yield from imported(node, known)


def test_imports_go_one_way() -> None:
    known = dict(modules())
    wrong = [
        f"graphc.{name} imports graphc.{other}"
        for name, path in known.items()
        for other in imported(ast.parse(path.read_text(encoding="utf-8")), known)
        if rank(other) > rank(name)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_loader_imports_no_compiler() -> None:
    code = "import sys, graphc; graphc.load; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"tvm", "tvm_ffi", "onnx", "onnxruntime", "torch", "click", "google.protobuf"}
    assert not loaded & heavy
    own = {name.removeprefix("graphc.") for name in loaded if name.startswith("graphc.")}
    assert own <= set(RUNTIME), own


def test_top_level_folders_refuse_a_second_copy() -> None:
    for name in ("passes", "codegen", "targets", "tuning_logs"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            cwd=ROOT.parent,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert f"import graphc.{name}" in done.stderr
