"""Linking: what the library needs and exports, equal bytes, and errors that can be repeated."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import small_artifact
from c_compiler import system_compiler

from graphc.artifact import RUNTIME
from graphc.codegen import elf, host, link
from graphc.errors import ToolError
from graphc.weights_file import write

TRIPLE = link.DEFAULT_TRIPLE


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = write(tmp_path_factory.mktemp("w") / "weights.bin", small_artifact.weights())
    return host.print_program(small_artifact.plans(), table)


@pytest.fixture(scope="module")
def kernels() -> bytes:
    return small_artifact.kernels()


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def test_needs_libc_and_libm_only(source: str, kernels: bytes, tmp_path: Path) -> None:
    files = link.build(source, [kernels], tmp_path)
    library = elf.read(files.library)
    assert library.machine == "x86_64" and library.soname == "libmodel.so"
    assert set(library.needed) <= {"libc.so.6", "libm.so.6"} and library.needed
    assert library.exported and all(name.startswith("gc_") for name in library.exported)
    headers = (RUNTIME / "graphc.h", RUNTIME / "tokenizer" / "graphc_tokenizer.h")
    declared = "".join(header.read_text() for header in headers)
    assert set(library.exported) == set(re.findall(r"^GC_API .*?(gc_\w+)\(", declared, re.M))
    assert elf.read(files.runner).needed == ()
    ldd = subprocess.run(["ldd", files.library], capture_output=True, text=True)
    names = {line.split()[0] for line in ldd.stdout.splitlines()}
    assert all(name.startswith(("linux-vdso", "libc.", "libm.", "/lib")) for name in names)


def test_relinks_are_byte_identical(
    source: str, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = link.build(source, [kernels], folder(tmp_path, "a"))
    monkeypatch.setenv("GRAPHC_CACHE", str(folder(tmp_path, "cache")))  # all compiled anew
    second = link.build(source, [kernels], folder(tmp_path, "b"))
    for one, other in ((first.library, second.library), (first.runner, second.runner)):
        data = one.read_bytes()
        assert data == other.read_bytes()
        for trace in (str(tmp_path).encode(), b"/tmp/", b"host.c", b"graphc-link-"):
            assert trace not in data, trace


def test_old_glibc_may_have_its_thread_library(source: str, kernels: bytes, tmp_path: Path) -> None:
    files = link.build(source, [kernels], tmp_path, triple="x86_64-linux-gnu.2.28")
    assert "libpthread.so.0" in elf.read(files.library).needed
    with pytest.raises(ToolError, match=r"needs libpthread.so.0: only the C library"):
        link.check_linked(files.library, TRIPLE)
    with pytest.raises(ToolError, match="was linked for x86_64, expected aarch64"):
        link.check_linked(files.library, "aarch64-linux-gnu.2.34")


def test_missing_kernel_names_the_command(source: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        link.build(source, [], tmp_path)
    message = str(caught.value)
    assert "__tvm_ffi_embed" in message
    command = message.split("repeat: ")[1]
    again = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert again.returncode != 0 and "__tvm_ffi_embed" in again.stderr
    assert list(tmp_path.iterdir()) == []


def test_broken_host_program(kernels: bytes, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"the C compiler failed: exit status 1\n.*host.c"):
        link.build("this is no C\n", [kernels], tmp_path)


def test_wrong_compiler(
    source: str, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHC_CC", str(tmp_path / "nocc"))
    with pytest.raises(ToolError, match=r"GRAPHC_CC=.*nocc cannot be run"):
        link.build(source, [kernels], tmp_path)


@pytest.mark.skipif(system_compiler() is None, reason="needs gcc or clang: apt install gcc")
def test_system_compiler(
    source: str, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHC_CC", str(system_compiler()))
    assert str(system_compiler()) in link.compiler_identity()
    files = link.build(source, [kernels], tmp_path)
    assert set(elf.read(files.library).needed) <= {"libc.so.6", "libm.so.6"}
    done = subprocess.run([files.runner, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: graphc-run DIR")


def test_unwritable_cache(
    source: str, kernels: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "runtime").write_text("in the way")
    monkeypatch.setenv("GRAPHC_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ToolError, match="cannot link into"):
        link.build(source, [kernels], tmp_path)


def test_prepare_is_quick_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    link.prepare()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a tool was called"))
    link.prepare()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF\x01\x01" + bytes(58), b"\x7fELF\x02\x01" + b"\xff" * 90],
    ids=["empty", "32 bits", "wild offsets"],
)
def test_elf_reader_refuses_other_files(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ToolError, match="not a readable ELF file"):
        elf.read(tmp_path / "x")
