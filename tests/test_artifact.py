"""Artifacts on disk: round trips, atomic publication, and damage of every kind refused."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphc import artifact, weights_file
from graphc import manifest as codec
from graphc.errors import ArtifactError, GraphcError

ARRAYS = {
    "bytes": np.arange(7, dtype="int8"),
    "empty": np.zeros((0, 3), "float32"),
    "scalar": np.float64(2.5) * np.ones(()),
    "turned": np.arange(6000, dtype="float32").reshape(50, 120).T,
    "half": np.ones((3, 5), ml_dtypes.bfloat16),
    "flags": np.array([True, False]),
    "wide": np.arange(9, dtype=">i8"),
}


def manifest(table: artifact.WeightTable, **changes: Any) -> artifact.Manifest:
    function = artifact.FunctionInfo(
        "main",
        (artifact.PortInfo("ids", "int64", ("batch", 4), (-5, 4)),),
        (artifact.PortInfo("y", "float32", ("batch", "2*batch + 1")),),
        (artifact.DimInfo("batch", 1, 9), artifact.DimInfo("free")),
        ("a == b: because",),
    )
    base = artifact.Manifest(
        target=artifact.TargetInfo("host", "x86_64", "x86_64-linux-gnu.2.34", ("avx2",)),
        functions=(function,),
        weights=table,
        kernels=(artifact.KernelInfo("k", "gemm", "{}"),),
        numerics={"cases": [{"max_abs": 1e-6, "max_rel": float("inf")}]},
    )
    return replace(base, **changes)


def write(place: Path, **changes: Any) -> artifact.Manifest:
    with artifact.publish(place) as draft:
        table = draft.write_weights(ARRAYS)
        draft.write_file(artifact.LIBRARY, b"\x7fELF", executable=True)
        return draft.write_manifest(manifest(table, **changes))


def test_round_trip(tmp_path: Path) -> None:
    written = write(tmp_path / "m.gc")
    read = artifact.read_manifest(tmp_path / "m.gc")
    assert read.functions == written.functions and read.weights == written.weights
    assert read.numerics == {"cases": [{"max_abs": 1e-6, "max_rel": "inf"}]}
    assert read.graphc_version and read.tvm_version
    assert {file.name for file in read.files} >= {"libmodel.so", "include/graphc.h", "example.c"}
    artifact.check_files(tmp_path / "m.gc", read)
    artifact.check_loadable(tmp_path / "m.gc", read)
    data = (tmp_path / "m.gc" / "weights.bin").read_bytes()
    for entry in read.weights.entries:
        array = np.frombuffer(data[entry.offset : entry.offset + entry.nbytes], np.uint8)
        original = ARRAYS[entry.name]
        little = original.astype(original.dtype.newbyteorder("<"))
        assert array.tobytes() == little.tobytes(order="C"), entry.name
        assert entry.offset % 64 == 0 and entry.shape == original.shape


def test_same_inputs_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.gc")
    write(tmp_path / "b.gc")
    for name in ("manifest.json", "weights.bin"):
        assert (tmp_path / "a.gc" / name).read_bytes() == (tmp_path / "b.gc" / name).read_bytes()


def test_only_the_artifact_remains(tmp_path: Path) -> None:
    write(tmp_path / "m.gc")
    write(tmp_path / "m.gc", source="again")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gc"]
    assert artifact.read_manifest(tmp_path / "m.gc").source == "again"
    mode = stat.S_IMODE((tmp_path / "m.gc").stat().st_mode)
    assert mode == 0o777 & ~artifact._umask()
    assert os.access(tmp_path / "m.gc" / "libmodel.so", os.X_OK)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GraphcError("no"), OSError(28, "full")])
def test_an_exception_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    write(tmp_path / "old.gc")
    for name in ("old.gc", "new.gc"):
        with pytest.raises(type(error)), artifact.publish(tmp_path / name) as draft:
            draft.write_file("x", b"x")
            raise error
    assert [path.name for path in tmp_path.iterdir()] == ["old.gc"]
    artifact.check_files(tmp_path / "old.gc", artifact.read_manifest(tmp_path / "old.gc"))


def test_a_full_disk_is_an_artifact_error(tmp_path: Path) -> None:
    """A limit on file size gives the same OSError path as a full disk."""
    script = (
        "import resource, signal, numpy as np, sys\n"
        "from pathlib import Path\n"
        "from graphc import artifact\n"
        "from graphc.errors import ArtifactError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        "  with artifact.publish(Path(sys.argv[1])) as draft:\n"
        "    draft.write_weights({'w': np.zeros(1 << 20, 'float32')})\n"
        "except ArtifactError as error:\n"
        "  print(error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "m.gc")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "cannot write" in done.stdout and "weights.bin: file too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_replace_what_is_no_artifact(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").write_text("1")
    (tmp_path / "file").write_text("1")
    for name in ("photos", "file"):
        with pytest.raises(ArtifactError, match="exists and is not an artifact"):
            write(tmp_path / name)
    with pytest.raises(ArtifactError, match=r"is not a directory|no such file"):
        write(tmp_path / "missing" / "m.gc")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    assert (tmp_path / "photos" / "one").exists()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    write(tmp_path / "link", source="through a link")
    assert (tmp_path / "link").is_symlink()
    assert artifact.read_manifest(tmp_path / "empty").source == "through a link"


def test_weights_are_streamed(tmp_path: Path) -> None:
    """A mapped file of 64 MB passes through without a copy of it in memory."""
    np.lib.format.open_memmap(tmp_path / "big.npy", "w+", "float32", (4096, 4096)).flush()
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    weights_file.write(tmp_path / "warm.bin", {"w": mapped[:64]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import tracemalloc

    tracemalloc.start()
    weights_file.write(tmp_path / "w.bin", {"straight": mapped, "turned": mapped.T})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 32 << 20, (peak, before)


@pytest.mark.parametrize("sizes", [[0], [1], [7, 1], [8], [9, 15, 24], [4096, 3]])
def test_checksum_in_pieces(sizes: list[int]) -> None:
    data = np.random.default_rng(0).integers(0, 256, sum(sizes), dtype=np.uint8)
    checksum, start = weights_file.Checksum(), 0
    for size in sizes:
        checksum.update(data[start : start + size])
        start += size
    padded = np.concatenate([data, np.zeros(-len(data) % 8, np.uint8)])
    words = [int(word) for word in padded.view("<u8")]
    assert checksum.value == sum((2 * i + 1) * w for i, w in enumerate(words)) % (1 << 64)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    place = tmp_path / "m.gc"
    read = write(place)
    weights = (place / "weights.bin").read_bytes()
    for data, expected in (
        (weights[:-64], "has .* bytes, expected"),
        (b"X" + weights[1:], "another model, or its header"),
    ):
        (place / "weights.bin").write_bytes(data)
        with pytest.raises(ArtifactError, match=expected):
            artifact.check_loadable(place, read)
    turned = next(entry for entry in read.weights.entries if entry.name == "turned")
    changed = bytearray(weights)
    changed[turned.offset + 77] ^= 1
    (place / "weights.bin").write_bytes(changed)
    artifact.check_loadable(place, read)
    with pytest.raises(ArtifactError, match="weight 'turned' is damaged"):
        artifact.check_files(place, read)
    (place / "weights.bin").unlink()
    with pytest.raises(ArtifactError, match=r"cannot read .*weights.bin: no such file"):
        artifact.check_loadable(place, read)
    (place / "libmodel.so").write_bytes(b"\x7fELG")
    with pytest.raises(ArtifactError, match=r"libmodel.so: is damaged"):
        artifact.check_loadable(place, read)


def test_not_an_artifact(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none", Path("/dev/null")):
        with pytest.raises(ArtifactError, match=r"is not an artifact: it has no manifest.json"):
            artifact.read_manifest(place)


def _record(tmp_path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((tmp_path / "m.gc" / "manifest.json").read_bytes())
    return record


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (("format_version",), 2, "artifact format version 2, this graphc reads version 1"),
        (("format_version",), True, "artifact format version True"),
        (("extra",), 1, "unknown field"),
        (("target", "machine"), 3, "target.machine is 3, not of type str"),
        (("functions",), [], "no functions"),
        (("functions", 0, "inputs", 0, "dtype"), "int63", "unknown dtype 'int63'"),
        (("functions", 0, "inputs", 0, "shape", 1), -4, "dimension -4"),
        (("functions", 0, "inputs", 0, "shape", 1), 1.5, "is 1.5"),
        (("functions", 0, "dims", 0, "lower"), 10, "bounds 10..9"),
        (("weights", "entries", 0, "offset"), 5000, "offset 5000"),
        (("weights", "entries", 0, "offset"), 1 << 70, "overlaps"),
        (("weights", "entries", 0, "nbytes"), 8, "8 bytes for"),
        (("weights", "entries", 0, "name"), "empty", "same name"),
        (("weights", "size"), 64, "weights end at"),
        (("weights", "digest"), "0" * 64, "weight table is damaged"),
        (("files", 0, "name"), "../../etc/passwd", "file name"),
        (("numerics",), [1], "numerics is not an object"),
        (("source",), "other", "do not match its digest"),
    ],
)
def test_mutated_fields(
    tmp_path: Path, path: tuple[Any, ...], value: object, expected: str
) -> None:
    write(tmp_path / "m.gc")
    record = _record(tmp_path)
    node: Any = record
    for step in path[:-1]:
        node = node[step]
    node[path[-1]] = value
    (tmp_path / "m.gc" / "manifest.json").write_text(json.dumps(record))
    with pytest.raises(ArtifactError, match=expected):
        artifact.read_manifest(tmp_path / "m.gc")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"\xff\xfe", b'{"format_version": 1}', b"[" * 100000, b"1" * 9999]
)
def test_not_a_manifest(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"^place: "):
        codec.from_json(data, "place")


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 1 << 20), st.binary(max_size=3)), min_size=1, max_size=4
    )
)
def test_mutated_bytes(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]
) -> None:
    place = tmp_path_factory.getbasetemp() / "mutated.gc"
    if not place.exists():
        write(place)
    data = (place / "manifest.json").read_bytes()
    mutated = bytearray(data)
    for at, new in edits:
        at %= len(mutated)
        mutated[at : at + 2] = new
    try:
        manifest = codec.from_json(bytes(mutated), "place")
    except ArtifactError as error:
        assert str(error).startswith("place: ")
    else:
        assert manifest == codec.from_json(data, "place")  # white space only
