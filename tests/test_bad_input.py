"""Everything a user can get wrong: status 2, a line or two, no traceback, nothing left behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny_models
from onnx import helper, numpy_helper
from support import CommandLine, Compiled, Models
from tiny_models import value


def external(path: Path, location: str, length: int = 24 * 8 * 4, offset: int = 0) -> Path:
    """x [batch, 24] times a weight [24, 8] that lies in another file."""
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[24, 8])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    for key, text in entries.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="only")
    inputs, outputs = [value("x", ["batch", 24])], [value("y", ["batch", 8])]
    return tiny_models.save(path, helper.make_graph([node], "g", inputs, outputs, [tensor]))


def not_a_protobuf(path: Path) -> None:
    path.write_bytes(b"this is no model, but text" * 100)


def empty(path: Path) -> None:
    path.touch()


def truncated(path: Path) -> None:
    data = tiny_models.perceptron(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def external_missing(path: Path) -> None:
    external(path, "weights.data")


def external_outside(path: Path) -> None:
    external(path, "../../../../../../etc/passwd")


def external_absolute(path: Path) -> None:
    external(path, "/etc/passwd")


def external_link_outside(path: Path) -> None:
    (path.parent / "w.data").symlink_to("/etc/passwd")
    external(path, "w.data")


def external_too_short(path: Path) -> None:
    (path.parent / "w.data").write_bytes(bytes(100))
    external(path, "w.data")


def external_offset_beyond(path: Path) -> None:
    (path.parent / "w.data").write_bytes(bytes(1000))
    external(path, "w.data", offset=1 << 62)


def unknown_operators(path: Path) -> None:
    tiny_models.perceptron(
        path,
        [
            helper.make_node("Frobnicate", ["x"], ["a"], name="one"),
            helper.make_node("Add", ["a", "a"], ["b"], name="two", domain="my.domain"),
            helper.make_node("MatMul", ["b", "w1"], ["y"], name="three"),
        ],
    )


def cyclic(path: Path) -> None:
    tiny_models.perceptron(
        path,
        [
            helper.make_node("Add", ["x", "b"], ["a"], name="one"),
            helper.make_node("Relu", ["a"], ["b"], name="two"),
            helper.make_node("MatMul", ["b", "w1"], ["y"], name="three"),
        ],
    )


def undefined_value(path: Path) -> None:
    tiny_models.perceptron(path, [helper.make_node("MatMul", ["x", "nothing"], ["y"], name="one")])


def contradictory_shapes(path: Path) -> None:
    tiny_models.perceptron(path, [helper.make_node("MatMul", ["x", "w2"], ["y"], name="one")])


def huge_weight(path: Path) -> None:
    tensor = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    del tensor.dims[:]
    tensor.dims.extend([1 << 40, 1 << 40])
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="one")
    ports = [value("x", ["batch", 24])], [value("y", ["batch", 24])]
    tiny_models.save(path, helper.make_graph([node], "g", *ports, [tensor]))


MODELS: list[tuple[Callable[[Path], None], str]] = [
    (not_a_protobuf, "protobuf"),
    (empty, "m.onnx"),
    (truncated, "protobuf"),
    (external_missing, "weights.data"),
    (external_outside, "etc/passwd"),
    (external_absolute, "etc/passwd"),
    (external_link_outside, "w.data"),
    (external_too_short, "w.data"),
    (external_offset_beyond, "w.data"),
    (unknown_operators, "Frobnicate"),
    (cyclic, "one"),
    (undefined_value, "nothing"),
    (contradictory_shapes, "one"),
    (huge_weight, "w"),
]


@pytest.mark.parametrize("verb", ["compile", "check"])
@pytest.mark.parametrize(("make", "place"), MODELS, ids=[make.__name__ for make, _ in MODELS])
def test_bad_models(
    graphc_cli: CommandLine,
    tmp_path: Path,
    verb: str,
    make: Callable[[Path], None],
    place: str,
) -> None:
    model = tmp_path / "m.onnx"
    make(model)
    before = sorted(tmp_path.iterdir())
    output = ("-o", tmp_path / "m.gc") if verb == "compile" else ()
    done = graphc_cli(verb, model, *output)
    assert done.status == 2 and place in (done.out if verb == "check" else done.err)
    message = [line for line in done.err.splitlines() if " s  " not in line]  # not the stages
    assert message[0].startswith("error: ") and "Traceback" not in done.err
    assert len(message) <= 2 or make is unknown_operators
    assert sorted(tmp_path.iterdir()) == before


def test_all_unknown_operators_are_listed_at_once(graphc_cli: CommandLine, tmp_path: Path) -> None:
    unknown_operators(tmp_path / "m.onnx")
    done = graphc_cli("check", tmp_path / "m.onnx")
    head, one, two = done.out.splitlines()
    assert head.split() == ["node", "operator", "domain", "opset", "why", "repair"]
    assert one.split()[:3] == ["one", "Frobnicate", "ai.onnx"]
    assert two.split()[:3] == ["two", "Add", "my.domain"]
    assert done.err.strip().endswith("2 blockers")


def save(path: Path, array: np.ndarray) -> str:
    np.save(path, array)
    return f"{path.stem}={path}"


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("z", np.ones((2, 24), np.float32), "z"),
        ("x", np.ones((2, 24), np.float64), "float64"),
        ("x", np.ones((2, 24), np.int32), "int32"),
        ("x", np.ones((2, 3, 24), np.float32), "rank"),
        ("x", np.ones(24, np.float32), "rank"),
        ("x", np.ones((2, 25), np.float32), "25"),
        ("x", np.ones((0, 24), np.float32), "0"),
    ],
)
def test_bad_inputs(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path, name: str, array: np.ndarray, words: str
) -> None:
    arguments = ("--input", save(tmp_path / f"{name}.npy", array), "-o", tmp_path / "out.npz")
    message = graphc_cli.refused("run", mlp.artifact, *arguments)
    assert words in message
    assert not (tmp_path / "out.npz").exists()


def test_a_symbolic_dimension_is_never_zero(graphc_cli: CommandLine, mlp: Compiled) -> None:
    """Only a model that declares an empty input has one."""
    assert "batch" in graphc_cli.refused("run", mlp.artifact, "--random", "--dim", "batch=0")
    assert "batch" in graphc_cli.refused("compile", mlp.model, "--dim", "batch=0", "-o", "z.gc")


def test_a_missing_input(graphc_cli: CommandLine, mlp: Compiled) -> None:
    assert "--random" in graphc_cli.refused("run", mlp.artifact)
    assert "--dim batch" in graphc_cli.refused("run", mlp.artifact, "--random")


@pytest.mark.parametrize("token", [50, -51, 1 << 40, -(1 << 62)])
def test_token_out_of_range(
    graphc_cli: CommandLine, embedding: Compiled, tmp_path: Path, token: int
) -> None:
    ids = np.zeros((2, 5), np.int64)
    ids[1, 3] = token
    message = graphc_cli.refused(
        "run", embedding.artifact, "--input", save(tmp_path / "ids.npy", ids)
    )
    assert str(token) in message and "lookup" in message


@pytest.mark.parametrize(
    "data",
    [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{", b"PK\x05\x06" + bytes(18)],
    ids=["empty", "text", "cut", "archive"],
)
def test_a_file_that_is_no_array(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "x.npy").write_bytes(data)
    assert "x.npy" in graphc_cli.refused("run", mlp.artifact, "--input", f"x={tmp_path / 'x.npy'}")


def test_a_pickle_is_not_loaded(graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "x.npy" in graphc_cli.refused("run", mlp.artifact, "--input", f"x={tmp_path / 'x.npy'}")


def test_an_output_that_is_something_else(
    graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").write_text("mine")
    assert "precious" in graphc_cli.refused("compile", mlp.model, "-o", precious)
    assert (precious / "data").read_text() == "mine"
    assert "nowhere" in graphc_cli.refused(
        "compile", mlp.model, "-o", tmp_path / "nowhere" / "a.gc"
    )


def test_a_damaged_artifact(graphc_cli: CommandLine, mlp: Compiled, tmp_path: Path) -> None:
    for name in ("manifest.json", "weights.bin", "libmodel.so"):
        copy = tmp_path / name
        shutil.copytree(mlp.artifact, copy)
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: len(data) // 2])
        graphc_cli.refused("run", copy, "--random", "--dim", "batch=1")
        (copy / name).unlink()
        graphc_cli.refused("run", copy, "--random", "--dim", "batch=1")


def graphc_process(*arguments: str | Path, cwd: Path, **options: object) -> subprocess.Popen[str]:
    """A real process, with temporary files in `cwd`/tmp."""
    (cwd / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "graphc", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd / "tmp"), "GRAPHC_NO_CACHE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def check_full_disk(process: subprocess.Popen[str], cwd: Path, left: list[str]) -> None:
    _, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if " s  " not in line]
    assert process.returncode == 2, err
    assert lines[0].startswith("error: ") and "Traceback" not in err, err
    assert sorted(path.name for path in cwd.iterdir()) == left
    assert not list((cwd / "tmp").iterdir())


@pytest.mark.parametrize("limit", [0, 100_000])
def test_files_that_cannot_grow(mlp: Compiled, tmp_path: Path, limit: int) -> None:
    def restrict() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = graphc_process("compile", mlp.model, "-o", "m.gc", cwd=tmp_path, preexec_fn=restrict)
    check_full_disk(process, tmp_path, ["tmp"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip(
            "mounting needs root: run the tests as root, or see test_files_that_cannot_grow"
        )
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk(mlp: Compiled, tmp_path: Path, small_disk: Path) -> None:
    process = graphc_process("compile", mlp.model, "-o", "disk/m.gc", cwd=tmp_path)
    check_full_disk(process, tmp_path, ["disk", "tmp"])
    assert not list(small_disk.iterdir())


def test_full_disk_for_temporary_files(mlp: Compiled, tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(bytes(120 << 10))
    (tmp_path / "tmp").symlink_to(small_disk)
    process = graphc_process("compile", mlp.model, "-o", "m.gc", cwd=tmp_path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "error: " in err and "Traceback" not in err, err
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    assert not (tmp_path / "m.gc").exists()


def test_full_disk_for_outputs(mlp: Compiled, tmp_path: Path, small_disk: Path) -> None:
    arguments = ("run", mlp.artifact, "--random", "--dim", "batch=5000", "-o", "disk/out.npz")
    process = graphc_process(*arguments, cwd=tmp_path)
    check_full_disk(process, tmp_path, ["disk", "tmp"])
    assert not list(small_disk.iterdir())


@pytest.mark.parametrize(
    ("stage", "sent"),
    [
        *((s, signal.SIGINT) for s in ("import tvm", "load", "graph", "lower", "build", "verify")),
        ("lower", signal.SIGTERM),
    ],
)
def test_interrupt_while_compiling(
    models: Models, tmp_path: Path, stage: str, sent: signal.Signals
) -> None:
    process = graphc_process(
        "compile", models.path("albert"), "-o", "m.gc", cwd=tmp_path, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.rstrip().endswith(f" s  {stage}"):
            break
    time.sleep(0.05)
    os.killpg(process.pid, sent)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "error: interrupted" in err.splitlines() and "Traceback" not in err
    assert time.monotonic() - start < 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tmp"]
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert left <= {".ses"}  # which onnxruntime writes when it is imported
