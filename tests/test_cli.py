"""The command line: every verb, exit status, JSON, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import CommandLine, Compiled

from graphc.targets import detect

VERBS = ("check", "compile", "run", "verify", "bench", "generate", "chat", "inspect", "targets")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(graphc_cli: CommandLine, verb: str) -> None:
    done = graphc_cli(verb, "--help")
    assert done.status == 0
    assert f"Example:\n    graphc {verb}" in done.out


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, graphc.cli as c; sys.argv = ['graphc', '--help']; c.run_command_line(); "
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert set(VERBS) <= set(done.stdout.split())
    assert not {"numpy", "tvm", "onnx", "onnxruntime"} & set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile"], "missing argument"),
        (["compile", "nowhere.onnx"], "no such model"),
        (["check", "nowhere.onnx"], "no such model"),
        (["inspect", "nowhere.onnx"], "nowhere.onnx"),
        (["run", "nowhere.gc", "--random"], "nowhere.gc"),
        (["targets", "x86"], "unknown target"),
        (["frobnicate"], "no such command"),
        (["targets", "--frob"], "no such option"),
        (["bench", "d", "--threads", "0"], "threads"),
        (["bench", "d", "--dim", "batch"], "NAME=VALUE"),
        (["compile", __file__, "--dim", "batch=3..1"], "batch"),
        (["compile", __file__, "--calibration", "nowhere.npz"], "no such file or folder"),
        (["compile", __file__, "--tuning-log", "x"], "not available in this version"),
        (["compile", __file__, "--max-context", "0"], "max_context"),
    ],
)
def test_bad_use(graphc_cli: CommandLine, arguments: list[str], message: str) -> None:
    assert message in graphc_cli.refused(*arguments)


def test_a_bad_variable_is_refused(
    graphc_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHC_DEBUG", "loud")
    assert "GRAPHC_DEBUG='loud'" in graphc_cli.refused("targets")


def test_targets(graphc_cli: CommandLine) -> None:
    assert "x86-64-v3" in graphc_cli("targets").out
    record = json.loads(graphc_cli("targets", "host", "--json").out)
    assert record["name"] == "host" and record["threads"] >= 1


def test_check(graphc_cli: CommandLine, mlp: Compiled) -> None:
    done = graphc_cli("check", mlp.model)
    assert done.status == 0 and "ok" in done.out
    record = json.loads(graphc_cli("check", mlp.model, "--json").out)
    assert record["ok"] is True and record["parameters"] == 24 * 64 + 64 + 64 * 40 + 40
    assert record["flops"] == {"formula": f"{2 * (24 * 64 + 64 * 40)}*batch", "value": None}
    record = json.loads(graphc_cli("check", mlp.model, "--dim", "batch=5", "--json").out)
    assert record["flops"]["value"] == 2 * 5 * (24 * 64 + 64 * 40)


def test_compile_tells_its_stages_and_uses_the_cache(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path
) -> None:
    output = tmp_path / "a.gc"
    done = graphc_cli("compile", mlp.model, "-o", output, "--dim", "batch=1..64")
    stages = [line.split()[-1] for line in done.err.splitlines()]
    assert done.status == 0
    assert stages[:3] == ["tvm", "load", "graph"] and stages[-1] == "verify"
    done = graphc_cli("compile", mlp.model, "-o", output, "--dim", "batch=1..64", "--json")
    record = json.loads(done.out)
    assert record["cached"] is True and record["numerics"]["passed"] is True
    assert done.err == ""


def test_every_stage_can_be_dumped(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHC_DUMP", str(tmp_path / "dump"))
    assert graphc_cli("compile", mlp.model, "-o", tmp_path / "a.gc").status == 0
    names = {path.name for path in (tmp_path / "dump").iterdir()}
    stages = ("1-load", "2-graph", "3-layout", "4-lower", "5-schedule")
    assert {*(f"{stage}.py" for stage in stages), "6-host.c"} <= names


def test_a_target_that_this_machine_is_not(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No machine has both features.
    wanted = {"avxvnni", "avx512fp16"}
    if wanted <= detect.machine().features:
        pytest.skip("this machine has every feature; the test needs one that lacks avx512fp16")
    device = 'base = "x86-64-v4"\ndescription = "x"\nfeatures = ["avxvnni", "avx512fp16"]'
    (tmp_path / "board.toml").write_text(device)
    monkeypatch.setenv("GRAPHC_TARGETS", str(tmp_path))
    arguments = ("compile", mlp.model, "-o", tmp_path / "b.gc", "--target", "board")
    assert "--no-verify" in graphc_cli.refused(*arguments)
    assert not (tmp_path / "b.gc").exists()
    assert graphc_cli(*arguments, "--no-verify").status == 0


def test_a_dimension_that_the_model_has_not(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path
) -> None:
    arguments = ("compile", mlp.model, "-o", tmp_path / "b.gc", "--dim", "height=3")
    assert "height" in graphc_cli.refused(*arguments)


def test_a_second_compile_does_not_import_tvm(mlp: Compiled, tmp_path: Path) -> None:
    code = (
        "import sys, graphc; a = graphc.compile(sys.argv[1], output=sys.argv[2]);"
        "print(a.cached, 'tvm' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(mlp.model), str(tmp_path / "b.gc")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_run(graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path) -> None:
    x = np.ones((3, 24), np.float32)
    np.save(tmp_path / "x.npy", x)
    output = tmp_path / "out.npz"
    arguments = ("run", mlp.artifact, "--input", f"x={tmp_path / 'x.npy'}", "--output", output)
    done = graphc_cli(*arguments, "--json")
    assert json.loads(done.out)["y"]["shape"] == [3, 40]
    with np.load(output) as written:
        assert written["y"].shape == (3, 40) and written["y"].dtype == np.float32
    done = graphc_cli("run", mlp.artifact, "--random", "--dim", "batch=5", "--threads", "1")
    assert done.status == 0 and "5x40" in done.out


def test_run_imports_no_compiler(mlp: Compiled) -> None:
    code = (
        "import sys, graphc.cli as c\n"
        f"sys.argv = ['graphc', 'run', {str(mlp.artifact)!r}, '--random', '--dim', 'batch=2']\n"
        "status = c.run_command_line()\n"
        "print(status, *sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *loaded = done.stderr.split()
    assert status == "0"
    assert not {"tvm", "tvm_ffi", "onnx", "onnxruntime", "graphc.ir"} & set(loaded)


def test_inspect(graphc_cli: CommandLine, mlp: Compiled) -> None:
    record = json.loads(graphc_cli("inspect", mlp.artifact, "--json").out)
    assert record["functions"][0]["inputs"][0]["name"] == "x"
    assert "MatMul: 2" in graphc_cli("inspect", mlp.model).out
    assert "by_template" in graphc_cli("inspect", mlp.artifact).out


def test_bench(graphc_cli: CommandLine, mlp: Compiled) -> None:
    arguments = ("bench", mlp.artifact, "--dim", "batch=4", "--seconds", "0.1", "--threads", "1")
    record = json.loads(graphc_cli(*arguments, "--json").out)
    assert [side["name"] for side in record["sides"]] == ["graphc"]
    assert record["flops"] == 2 * 4 * (24 * 64 + 64 * 40)
    assert record["peak_gflops"] > 0 and record["read_gb_per_s"] > 0
    done = graphc_cli(*arguments, "--against", "onnxruntime", mlp.model)
    assert done.status == 0
    assert "onnxruntime" in done.out and "share of peak" in done.out
    assert "'ort': expected" in graphc_cli.refused(*arguments, "--against", "ort", mlp.model)
    record = json.loads(graphc_cli(*arguments, "--kernels", "--json").out)
    kernels = [row for row in record["kernels"] if row["flops"]]
    assert sum(row["flops"] for row in kernels) == record["flops"]
    assert all(row["calls"] > 0 and row["seconds"] > 0 and row["bytes"] > 0 for row in kernels)
    assert "of peak" in graphc_cli(*arguments, "--kernels").out


def test_a_closed_pipe_is_no_error(mlp: Compiled) -> None:
    command = f"{sys.executable} -m graphc inspect {mlp.artifact} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "error" not in done.stderr


def test_a_fault_of_our_own_is_a_line(
    graphc_cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> list[str]:
        raise KeyError("planted")

    monkeypatch.setattr("graphc.targets.load.names", fail)
    done = graphc_cli("targets")
    assert done.status not in (0, 1, 2) and "please report it: KeyError" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("GRAPHC_DEBUG", "1")
    with pytest.raises(KeyError, match="planted"):
        graphc_cli("targets")
