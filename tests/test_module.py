"""Running artifacts from Python: numbers, typed errors, threads, processes and life cycles."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_artifact
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphc
from graphc.errors import ArtifactError, GraphcError, InputError
from graphc.module import Module

FEEDS = small_artifact.feeds()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_artifact.build(tmp_path_factory.mktemp("small") / "small.gc")


@pytest.fixture(scope="module")
def module(small: Path) -> Any:
    with graphc.load(small, threads=2) as loaded:
        yield loaded


def check(outputs: dict[str, Any], feeds: dict[str, Any]) -> None:
    for name, expected in small_artifact.reference(feeds).items():
        assert outputs[name].dtype == expected.dtype and outputs[name].shape == expected.shape
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 9), sequence=st.integers(1, 64), seed=st.integers(0, 9))
def test_any_shape(module: Module, batch: int, sequence: int, seed: int) -> None:
    feeds = small_artifact.feeds(batch, sequence, seed)
    check(module(**feeds), feeds)


def test_the_ways_to_call(module: Module) -> None:
    assert [port.name for port in module.inputs] == ["ids", "x"]
    assert module.outputs[1].shape == ("batch*sequence", 8)
    even, y = module.run(["even", "y"], FEEDS)
    check({**module(**FEEDS), "even": even, "y": y}, FEEDS)
    assert len(module.run(None, FEEDS)) == 5
    shapes = module.infer_shapes({"ids": (2, 3), "x": (2, 3, 8)})
    assert shapes["flat"] == (6, 8) and shapes["bias_copy"] == (8,)
    key = np.arange(3, dtype="int32")
    a = np.arange(12, dtype="int32").reshape(3, 4)
    (b,) = module.run(None, {"a": a, "key": key}, function="square")
    np.testing.assert_array_equal(b, a.T)
    assert sorted(module.functions) == ["broken", "main", "square"]
    assert "small.gc (ids: int64" in repr(module)


def test_outputs_are_new_and_aligned(module: Module) -> None:
    first, second = module(**FEEDS), module(**FEEDS)
    for name, array in first.items():
        assert array.ctypes.data % 64 == 0
        assert not np.shares_memory(array, second[name]) and array.flags.writeable


def test_memory_that_is_not_compact_or_aligned(module: Module) -> None:
    expected = small_artifact.reference(FEEDS)["y"]
    x = FEEDS["x"]
    padded = np.zeros((3, 5, 11), "float32")
    padded[:, :, 2:10] = x
    shifted = np.zeros(x.nbytes + 4, np.uint8)[4:].view("float32").reshape(x.shape)
    shifted[:] = x
    records = np.zeros((3, 5, 8), [("pad", "u1"), ("x", "float32")])
    records["x"] = x
    reverse = np.ascontiguousarray(x[::-1])[::-1]
    for strange in (padded[:, :, 2:10], shifted, records["x"], reverse, np.asfortranarray(x)):
        np.testing.assert_allclose(module(ids=FEEDS["ids"], x=strange)["y"], expected, rtol=1e-6)


def test_dlpack(module: Module) -> None:
    tensors = {name: torch.from_numpy(array) for name, array in FEEDS.items()}
    check(module(**tensors), FEEDS)
    turned = torch.from_numpy(np.ascontiguousarray(FEEDS["x"].transpose(2, 1, 0))).permute(2, 1, 0)
    check(module(ids=tensors["ids"], x=turned), FEEDS)
    with pytest.raises(InputError, match="input 'x': its DLPack memory cannot be read"):
        module(ids=tensors["ids"], x=tensors["x"].clone().requires_grad_())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"idz": 1}, r"no input 'idz': did you mean 'ids'\?"),
        ({"ids": None}, "missing input 'ids': the model takes 'ids', 'x'"),
        ({"ids": [[1]]}, "input 'ids': is a list, expected a NumPy array or a DLPack tensor"),
        ({"ids": FEEDS["ids"].astype("int32")}, r"int32, expected int64: cast it with .astype"),
        ({"x": FEEDS["x"].astype(">f4")}, "dtype is byte-swapped float32, expected float32"),
        ({"x": FEEDS["x"][0]}, r"'x': has 2 dimensions, expected 3: \[batch, sequence, 8\]"),
        ({"x": FEEDS["x"][:, :, :7]}, "input 'x': dimension 2 is 7, expected 8"),
        (
            {"x": FEEDS["x"][:, :4]},
            "input 'x': dimension 1 is 4, but 'sequence' is already 5 from 'ids'",
        ),
        ({"ids": FEEDS["ids"][:0]}, "input 'ids': dimension 0 is 0, but 'batch' must be at least"),
        ({"ids": np.zeros((1, 65), "int64")}, "dimension 1 is 65, but 'sequence' must be 1 to 64"),
        (
            {"ids": FEEDS["ids"] + 1000},
            r"'ids': the index at \[0, 0\] is \d+, allowed is -50 to 49 \(where: Gather node",
        ),
    ],
)
def test_wrong_inputs(module: Module, changes: dict[str, Any], expected: str) -> None:
    feeds = {name: value for name, value in {**FEEDS, **changes}.items() if value is not None}
    with pytest.raises(InputError, match=expected):
        module(**feeds)
    check(module(**FEEDS), FEEDS)  # and it still works


def test_wrong_names_and_constraints(module: Module) -> None:
    with pytest.raises(InputError, match=r"no output 'yy': there is 'y', 'flat'|did you mean"):
        module.run(["yy"], FEEDS)
    with pytest.raises(InputError, match=r"no function 'mian': did you mean 'main'"):
        module.run(None, FEEDS, function="mian")
    a = np.zeros((4, 5), "int32")
    with pytest.raises(InputError, match=r"this model needs n\*2 == 6, but they are 8 and 6: node"):
        module.run(None, {"key": a[:, 0], "a": a}, function="square")
    with pytest.raises(InputError, match=r"'a': dimension 1 is 5, expected n \+ 1 = 4"):
        module.run(None, {"key": a[:3, 0], "a": a[:3]}, function="square")
    with pytest.raises(InputError, match="impossible dimension"):
        module.infer_shapes({"ids": (-1, 2), "x": (1, 2, 8)})
    with pytest.raises(InputError, match="too large for this machine: batch = 4611686018427387904"):
        module.infer_shapes({"ids": (1 << 62, 2), "x": (1 << 62, 2, 8)})


def test_a_kernel_that_refuses(module: Module) -> None:
    with pytest.raises(GraphcError, match=r"kernel 'turn' failed: Mismatched a.ndim"):
        module.run(None, {"x": np.zeros(3, "int32")}, function="broken")
    check(module(**FEEDS), FEEDS)


def test_four_threads(small: Path) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for batch in range(1, 12):
                feeds = small_artifact.feeds(batch, (batch * seed) % 64 + 1, seed)
                check(loaded(**feeds), feeds)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with graphc.load(small, threads=2) as loaded:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def test_contexts_end_with_their_threads(small: Path) -> None:
    with graphc.load(small, threads=3) as loaded:
        for _ in range(5):
            thread = threading.Thread(target=lambda: loaded(**FEEDS))
            thread.start()
            thread.join()
        gc.collect()
        assert len(loaded._contexts) == 0


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_close_and_collection(small: Path) -> None:
    before = _threads()
    loaded = graphc.load(small, threads=3)
    loaded(**FEEDS)
    assert _threads() == before + 2
    loaded.close()
    loaded.close()
    assert _threads() == before
    with pytest.raises(GraphcError, match="is closed: load it again"):
        loaded(**FEEDS)
    other = graphc.load(small, threads=3)
    other(**FEEDS)
    alive = weakref.ref(other)
    del other
    gc.collect()
    assert alive() is None and _threads() == before
    maps = Path("/proc/self/maps").read_text()
    assert str(small / "weights.bin") not in maps or _loaded_elsewhere(maps, small)


def _loaded_elsewhere(maps: str, small: Path) -> bool:
    """The module fixture may hold the same artifact: one mapping of weights, then."""
    return maps.count(str(small / "weights.bin")) == 1


def test_works_after_fork(small: Path) -> None:
    with graphc.load(small, threads=2) as loaded:
        check(loaded(**FEEDS), FEEDS)
        child = os.fork()
        if child == 0:  # in the child: no worker thread of the parent exists
            try:
                check(loaded(**FEEDS), FEEDS)
                os._exit(0)
            except BaseException:  # noqa: BLE001
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        check(loaded(**FEEDS), FEEDS)


def test_replaced_artifact_is_loaded_anew(small: Path, tmp_path: Path) -> None:
    """Also while the old one is open, and although the path is the same."""
    place = tmp_path / "m.gc"
    shutil.copytree(small, place)
    old = graphc.load(place)
    small_artifact.build(place, rows=60)
    with graphc.load(small) as same, graphc.load(place) as new:
        check(same(**FEEDS), FEEDS)
        assert new.manifest.weights.size > old.manifest.weights.size
        check(old(**FEEDS), FEEDS)
    old.close()


def test_refuses_other_machines_and_features(small: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    from graphc import artifact
    from graphc import manifest as codec

    place = tmp_path / "m.gc"
    shutil.copytree(small, place)
    read = artifact.read_manifest(place)
    target = replace(read.target, machine="riscv64")
    (place / "manifest.json").write_bytes(codec.to_json(replace(read, target=target)))
    with pytest.raises(ArtifactError, match="was compiled for riscv64, this machine is"):
        graphc.load(place)
    with pytest.raises(InputError, match="threads is 0, expected 1 to 1024"):
        graphc.load(small, threads=0)


def test_missing_cpu_feature(tmp_path: Path) -> None:
    """amx-int8 with avx512fp16 and avxvnniint8: no machine that runs these tests has all three."""
    from graphc import artifact
    from graphc.codegen import host, link

    features = ["amx-int8", "avx512fp16", "avxvnniint8", "sse4a"]
    with artifact.publish(tmp_path / "m.gc") as draft:
        table = draft.write_weights(small_artifact.weights())
        source = host.print_program(small_artifact.plans(), table, features)
        link.build(source, [small_artifact.kernels()], draft.path)
        functions = tuple(host.describe(plan) for plan in small_artifact.plans())
        draft.write_manifest(
            artifact.Manifest(artifact.TargetInfo("t", "x86_64"), functions, table)
        )
    with pytest.raises(ArtifactError, match=r"this CPU has no '.*', which the kernels need"):
        graphc.load(tmp_path / "m.gc")


def test_damaged_library_and_weights(small: Path, tmp_path: Path) -> None:
    place = tmp_path / "m.gc"
    shutil.copytree(small, place)
    data = bytearray((place / "weights.bin").read_bytes())
    order = bytes(data).rindex(np.arange(7, dtype="int64").tobytes())
    data[order + 8] = 9
    (place / "weights.bin").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"weight 'order' in '.*' is damaged"):
        graphc.load(place)
    library = bytearray((small / "libmodel.so").read_bytes())
    library[len(library) // 2] ^= 1
    (place / "libmodel.so").write_bytes(library)
    with pytest.raises(ArtifactError, match=r"libmodel.so: is damaged"):
        graphc.load(place)


def test_needs_no_compiler(small: Path) -> None:
    script = (
        "import sys, json, graphc\n"
        f"m = graphc.load({str(small)!r})\n"
        "m(**m.example_inputs())\n"
        "print(json.dumps([n for n in ('tvm', 'onnx', 'ml_dtypes', 'click') if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_processes_share_weights(tmp_path: Path) -> None:
    """Four at once: what of the weights is private to each, from /proc/self/smaps."""
    place = small_artifact.build(tmp_path / "large.gc", rows=200_000)
    size = (place / "weights.bin").stat().st_size
    os.sync()  # pages still to be written count as dirty, whoever maps them
    command = [sys.executable, str(Path(__file__).with_name("smaps_worker.py")), str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == "ran\n"
    for process in processes:
        process.stdin.write("measure\n")
        process.stdin.flush()
    private, resident = zip(
        *(map(int, process.stdout.readline().split()) for process in processes), strict=True
    )
    for process in processes:
        process.communicate("end\n")
    assert max(private) < size / 10 and min(resident) > size / 2, (private, resident, size)
