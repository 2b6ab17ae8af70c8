"""The static graphc-run and example.c of an artifact: results, messages, exit statuses."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import small_artifact
from c_compiler import system_compiler

import graphc
from graphc.codegen import elf


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_artifact.build(tmp_path_factory.mktemp("small") / "small.gc")


def run(small: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(small / "graphc-run"), str(small), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def refusal(small: Path, *arguments: str | Path) -> str:
    done = run(small, *arguments)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("graphc-run: ") and not done.stdout
    return done.stderr


def saved(folder: Path, **arrays: np.ndarray) -> list[str]:
    arguments = []
    folder = Path(tempfile.mkdtemp(dir=folder))
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        arguments += ["--input", f"{name}={folder / name}.npy"]
    return arguments


def test_files_in_files_out(small: Path, tmp_path: Path) -> None:
    feeds = small_artifact.feeds(2, 7)
    arguments = saved(tmp_path, **feeds)
    done = run(small, *arguments, "--output", tmp_path / "out", "--threads", "2", "--repeat", "3")
    assert done.returncode == 0, done.stderr
    assert "fastest of 3 runs" in done.stdout
    for name, expected in small_artifact.reference(feeds).items():
        actual = np.load(tmp_path / "out" / f"{name}.npy")
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_fortran_order_and_one_output_file(small: Path, tmp_path: Path) -> None:
    a = np.asfortranarray(np.arange(12, dtype="int32").reshape(3, 4))
    arguments = saved(tmp_path, key=a[:, 0].copy(), a=a)
    done = run(small, "--function", "square", *arguments, "--output", tmp_path / "b.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), a.T)


def test_made_up_inputs_are_those_of_python(small: Path) -> None:
    done = run(small, "--random", "--dim", "batch=2", "--dim", "sequence=3")
    assert done.returncode == 0, done.stderr
    printed = {line.split()[0]: line.rpartition(":")[2].split() for line in _lines(done.stdout)}
    with graphc.load(small) as module:
        outputs = module(**module.example_inputs({"batch": 2, "sequence": 3}))
    for name, array in outputs.items():
        assert printed[name] == [f"{float(v):.6g}" for v in array.ravel()[:8]], name


@pytest.mark.skipif(system_compiler() is None, reason="needs gcc or clang: apt install gcc")
def test_example_builds_with_the_command_in_it(small: Path, tmp_path: Path) -> None:
    source = (small / "example.c").read_text()
    command = next(line for line in source.splitlines() if " cc example.c" in line)
    command = command.removeprefix(" *").strip()
    command = command.replace("cc ", f"{system_compiler()} -Wall -Wextra -Werror ", 1)
    done = subprocess.run(command, shell=True, cwd=small, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (small / "example").unlink()
    assert "y [8, 8, 8]: " in done.stdout
    with graphc.load(small) as module:
        y = module(**module.example_inputs())["y"]
    assert done.stdout.splitlines()[0].split(": ")[1].split() == [f"{v:.6g}" for v in y.flat[:8]]


def test_it_is_static_and_runs_with_an_empty_environment(small: Path) -> None:
    assert elf.read(small / "graphc-run").needed == ()
    command = [str(small / "graphc-run"), str(small), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/")
    assert done.returncode == 0 and "input ids int64 [batch, sequence]" in done.stdout


def test_messages(small: Path, tmp_path: Path) -> None:
    feeds = small_artifact.feeds(2, 3)
    ids, x = feeds["ids"], feeds["x"]
    cases = {
        "input 'x' is missing": saved(tmp_path, ids=ids),
        "no such input": [*saved(tmp_path, ids=ids, x=x), "--input", "y=none.npy"],
        "cannot open": ["--input", "ids=none.npy", "--random"],
        "dtype is int32, expected int64": saved(tmp_path, ids=ids.astype("int32"), x=x),
        "but 'batch' is already 2 from 'ids'": saved(tmp_path, ids=ids, x=x[:1]),
        "has 1 dimensions, expected 2: [batch, sequence]": saved(tmp_path, ids=ids[0], x=x),
        "index at [1, 0] is 50, allowed is -50 to 49": saved(
            tmp_path, ids=np.array([[0, 1, 2], [50, 0, 0]]), x=x
        ),
        "not a number": ["--random", "--dim", "batch=two"],
        "no such dimension": ["--random", "--dim", "width=2"],
        "--dim is only used with --random": ["--dim", "batch=2"],
        "'batch' must be at least 1": ["--random", "--dim", "batch=0"],
        "'sequence' must be 1 to 64": ["--random", "--dim", "sequence=65"],
        "no function 'other'": ["--function", "other"],
        "unknown option '--fast'": ["--fast"],
        "'--threads' is not followed": ["--threads", "0"],
        "several outputs": ["--random", "--output", str(tmp_path / "y.npy")],
    }
    for expected, arguments in cases.items():
        assert expected in refusal(small, *arguments), expected


def test_malformed_npy_files(small: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", small_artifact.feeds(2, 3)["x"])
    good = (tmp_path / "good.npy").read_bytes()
    cases = {
        "not an .npy file": b"",
        "truncated header": good[:40],
        "has 191 bytes of data, its shape needs 192": good[:-1],
        "has 193 bytes of data": good + b"\0",
        "version 9": good[:6] + b"\x09" + good[7:],
        "damaged header": good.replace(b"fortran", b"fortram"),
        "dtype '>f4' cannot be read": good.replace(b"<f4", b">f4"),
        "dtype '|O' cannot be read": good.replace(b"'<f4'", b"'|O' "),
        "needs 18446744073709551615": good.replace(b"(2, 3, 8)", b"(" + b"9" * 18 + b",9)"),
    }
    for expected, data in cases.items():
        (tmp_path / "bad.npy").write_bytes(data)
        message = refusal(small, "--input", f"x={tmp_path}/bad.npy", "--random")
        assert expected in message or "header" in message, (expected, message)


def test_failed_kernel_is_exit_status_1(small: Path) -> None:
    done = run(small, "--function", "broken", "--random")
    assert done.returncode == 1 and "kernel 'turn' failed: Mismatched" in done.stderr


def test_output_cannot_leave_its_directory(small: Path, tmp_path: Path) -> None:
    assert "cannot make that directory" in refusal(
        small, "--random", "--output", tmp_path / "a" / "b"
    )


def test_wrong_weights(small: Path, tmp_path: Path) -> None:
    data = (small / "weights.bin").read_bytes()
    order = data.rindex(np.arange(7, dtype="int64").tobytes())
    cases = {
        "is truncated": data[:100],
        "not a graphc weights file": b"X" + data[1:],
        "format version 2": data[:8] + b"\x02" + data[9:],
        "another model": data[:30] + bytes([data[30] ^ 1]) + data[31:],
        "truncated or padded": data + bytes(64),
        "weight 'order'": data[: order + 8] + b"\x09" + data[order + 9 :],
    }
    for expected, changed in cases.items():
        (tmp_path / "weights.bin").write_bytes(changed)
        command = [str(small / "graphc-run"), str(tmp_path), "--list"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and expected in done.stderr, (expected, done.stderr)
    command = [str(small / "graphc-run"), os.devnull, "--list"]
    assert subprocess.run(command, capture_output=True).returncode == 2


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]
