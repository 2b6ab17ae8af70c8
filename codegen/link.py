"""Compiles the host program and the runtime, and links them with the kernels.

The compiler is the PyPI package `ziglang`, which brings the C libraries of every target, or what
GRAPHC_CC names. The same inputs give the same bytes: tools run in a fresh directory on relative
names, and nothing of the machine, the time or a build id gets into the files.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from graphc import env
from graphc.artifact import LIBRARY, RUNNER, RUNTIME
from graphc.codegen import elf
from graphc.errors import ConfigError, ToolError

DEFAULT_TRIPLE: Final = "x86_64-linux-gnu.2.34"
"""From glibc 2.34 on, threads are part of libc: the library needs libc and libm only."""

_COMPILE: Final = ("-std=c11", "-O2", "-g0", "-Wall", "-fvisibility=hidden", "-fno-ident")
_LIBRARY_LINK: Final = (
    "-shared",
    "-s",
    f"-Wl,-soname,{LIBRARY}",
    "-Wl,--version-script=exports.map",
    "-Wl,--build-id=none",
    "-Wl,--as-needed",
    "-Wl,-z,defs",
    "-Wl,-z,relro",
    "-Wl,-z,now",
)
_RUNNER_LINK: Final = ("-static", "-s", "-O2", "-Wl,--build-id=none", "-Wl,--gc-sections")
# Without the compiler's own support library, which kernels hardly ever use and which zig would
# spend five seconds on; when the link shows that they do, it is linked after all.
_LEAN: Final = ("-nostdlib", "-lc")
_FULL: Final = ("-O2",)
_EXPORTS: Final = "{ global: gc_*; local: *; };\n"
_RUNNER_SOURCES: Final = frozenset({"generate.c", "main.c", "npy.c", "speech.c"})
# Back ends of devices open the driver's library at run time, which a static program cannot: with
# one of them graphc-run needs the C library of the system.
_GROUPS: Final = {
    "device": ("device_cache", "device_ranges"),
    "opencl": ("device_opencl", "opencl_api", "opencl_memory", "opencl_program"),
    "vulkan": (
        "device_vulkan",
        "vulkan_api",
        "vulkan_memory",
        "vulkan_open",
        "vulkan_program",
    ),
}
_DYNAMIC_RUNNER_LINK: Final = ("-s", "-O2", "-Wl,--build-id=none", "-Wl,--gc-sections")
_TIMEOUT_SECONDS: Final = 600
_ABANDON_SECONDS: Final = 5
_PREPARING: Final = "prepare linker"  # the thread's name
_RUNNING: Final[set[subprocess.Popen[str]]] = set()
_RUNNING_LOCK: Final = threading.Lock()
_STDERR_LINES: Final = 12


@dataclass(frozen=True)
class LinkedFiles:
    """What `build` wrote."""

    library: Path
    runner: Path


@dataclass(frozen=True)
class _Toolchain:
    """A C compiler: the command for dynamic and for static output, and what identifies it."""

    shared: tuple[str, ...]
    static: tuple[str, ...]
    identity: str
    environment: Mapping[str, str]
    is_zig: bool


def build(
    host_source: str,
    kernels: Sequence[bytes],
    output: Path,
    *,
    triple: str = DEFAULT_TRIPLE,
    device: str | None = None,
) -> LinkedFiles:
    """Write libmodel.so and the static graphc-run into the directory `output`.

    `kernels` are object files; `device` names the back end that is linked in beside the CPU's.
    `triple` is `machine-linux-gnu.GLIBC` with the oldest glibc that the library must load on.
    Raises ToolError, with the command to repeat, when a tool is missing or fails, or when the
    library needs anything but the C library.
    """
    tools = _toolchain(triple)
    try:
        with tempfile.TemporaryDirectory(prefix="graphc-link-") as name:
            return _build(tools, host_source, kernels, Path(name), output, triple, device)
    except OSError as error:
        place = error.filename or output
        raise ToolError(f"cannot link into {output}: {place}: {error.strerror}") from error


def shared_library(source: Path, output: Path, options: Sequence[str]) -> None:
    """Compile one C file to a shared library for this machine, with these options."""
    tools = _toolchain(DEFAULT_TRIPLE)
    with tempfile.TemporaryDirectory(prefix="graphc-link-") as name:
        work = Path(name)
        shutil.copyfile(source, work / source.name)
        command = [*tools.shared, *options, "-fPIC", "-shared", source.name, "-lpthread"]
        _call(tools, [*command, "-o", "out.so"], work)
        shutil.copyfile(work / "out.so", output)


def prepare(triple: str = DEFAULT_TRIPLE) -> None:
    """Do all work that does not depend on a model: the runtime's objects and zig's C libraries.

    The first call on a machine takes half a minute of CPU time with zig; later ones return at
    once. Run it when installing (`python -m graphc.codegen.link`) or beside other stages.
    """
    tools = _toolchain(triple)
    place = cache_directory() / "runtime"
    try:
        with tempfile.TemporaryDirectory(prefix="graphc-link-") as name:
            work = Path(name)
            objects = _runtime_objects(tools, tools.static, False)
            done = place / f"{objects.name}-linked"
            _runtime_objects(tools, tools.shared, True)
            if done.exists():
                return
            (work / "probe.c").write_text("int main(void) { return 0; }\n", encoding="ascii")
            command = [*tools.static, *_RUNNER_LINK, "-o", "probe", "probe.c", "-lm", "-lpthread"]
            _call(tools, command, work)
            done.touch()
    except OSError as error:
        raise ToolError(f"cannot write {error.filename or place}: {error.strerror}") from error


def abandon() -> None:
    """End the tools that run and wait until their directories are gone: for interruptions."""
    with _RUNNING_LOCK:
        for process in _RUNNING:
            process.kill()
    for thread in threading.enumerate():
        if thread.name == _PREPARING:
            thread.join(_ABANDON_SECONDS)


def prepare_beside(triple: str = DEFAULT_TRIPLE) -> Callable[[], None]:
    """`prepare` in a thread of its own; the function returned waits for it and raises its error.

    Compiling the C libraries takes other programs' time, not this interpreter's.
    """
    failure: list[ToolError] = []

    def work() -> None:
        try:
            prepare(triple)
        except ToolError as error:
            failure.append(error)

    thread = threading.Thread(target=work, name=_PREPARING, daemon=True)
    thread.start()

    def wait() -> None:
        thread.join()
        if failure:
            raise failure[0]

    return wait


def compiler_identity(triple: str = DEFAULT_TRIPLE) -> str:
    """Name and version of the C compiler, as it decides what the output's bytes are."""
    return _toolchain(triple).identity


def cache_directory() -> Path:
    """Where compiled runtime objects and zig's caches are kept."""
    return env.cache_dir()


def check_linked(path: Path, triple: str) -> None:
    """Raise ToolError unless `path` is for the triple's machine and needs only its C library."""
    machine = _machine(triple)
    info = elf.read(path)
    if info.machine != machine:
        raise ToolError(
            f"{path.name} was linked for {info.machine}, expected {machine}: "
            f"point GRAPHC_CC to a compiler for {triple}, or unset it to use ziglang"
        )
    extra = sorted(set(info.needed) - _allowed(triple))
    if extra:
        raise ToolError(f"{path.name} needs {', '.join(extra)}: only the C library is allowed")


def _build(
    tools: _Toolchain,
    host_source: str,
    kernels: Sequence[bytes],
    work: Path,
    output: Path,
    triple: str,
    device: str | None,
) -> LinkedFiles:
    runner = tools.static if device is None else tools.shared
    runner_link = _RUNNER_LINK if device is None else _DYNAMIC_RUNNER_LINK
    with ThreadPoolExecutor(2) as pool:  # the two are independent, and mostly subprocesses
        shared = pool.submit(_runtime_objects, tools, tools.shared, True)
        static = pool.submit(_runtime_objects, tools, runner, False)
        objects = {True: shared.result(), False: static.result()}
        (work / "host.c").write_text(host_source, encoding="ascii")
        (work / "exports.map").write_text(_EXPORTS, encoding="ascii")
        for name in ("program.h", "graphc.h"):
            shutil.copyfile(RUNTIME / name, work / name)
        names = [f"kernels{number}.o" for number in range(len(kernels))]
        for name, data in zip(names, kernels, strict=True):
            (work / name).write_bytes(data)
        # One object for both: it uses nothing of the C library but fixed-size integers.
        _call(tools, [*tools.shared, *_COMPILE, "-fPIC", "-c", "host.c", "-o", "host.o"], work)
        jobs = []
        for is_library, command, options, target in (
            (True, tools.shared, _LIBRARY_LINK, LIBRARY),
            (False, runner, runner_link, RUNNER),
        ):
            inputs = ["host.o", *_copy_objects(objects[is_library], work, device), *names]
            arguments = [*command, *options, "-o", target, *inputs, "-lm", "-lpthread"]
            jobs.append(pool.submit(_link, tools, arguments, is_library, work))
        for job in jobs:
            job.result()
    for name in (LIBRARY, RUNNER):
        check_linked(work / name, triple)
        shutil.copyfile(work / name, output / name)
        (output / name).chmod(0o755)
    return LinkedFiles(output / LIBRARY, output / RUNNER)


def _link(tools: _Toolchain, arguments: Sequence[str], is_library: bool, work: Path) -> None:
    if is_library and tools.is_zig:
        try:
            _call(tools, [*arguments, *_LEAN], work)
        except ToolError as error:
            if "undefined symbol" not in str(error):
                raise
        else:
            return
    _call(tools, [*arguments, *_FULL], work)


def _copy_objects(objects: Path, work: Path, device: str | None) -> list[str]:
    """Beside the other inputs, so that the command has relative names only."""
    groups = ("common",) if device is None else ("common", "device", device)
    directory = work / objects.name
    shutil.copytree(objects, directory, dirs_exist_ok=True)
    found = (path for group in groups for path in (directory / group).glob("*.o"))
    return sorted(str(path.relative_to(work)) for path in found)


def _toolchain(triple: str) -> _Toolchain:
    machine = _machine(triple)
    cc = env.cc()
    if cc is not None:
        command = tuple(shlex.split(cc))
        return _Toolchain(command, command, _version(command), {}, is_zig=False)
    zig = _zig()
    cache = _zig_cache()
    return _Toolchain(
        shared=(zig, "cc", "-target", triple, "-fno-sanitize=all"),
        static=(zig, "cc", "-target", f"{machine}-linux-musl", "-fno-sanitize=all"),
        identity=f"ziglang {importlib.metadata.version('ziglang')}",
        environment={"ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)},
        is_zig=True,
    )


def _zig_cache() -> Path:
    """Where zig keeps the C libraries that it builds, half a minute's work once per machine.

    They depend on zig alone, so they stay in the user's cache when GRAPHC_CACHE is elsewhere.
    """
    try:
        place: Path = env.KNOBS["GRAPHC_CACHE"].default() / "zig"
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, ConfigError):  # no home directory, or a read-only one
        return cache_directory() / "zig"
    return place if os.access(place, os.W_OK) else cache_directory() / "zig"


def _zig() -> str:
    spec = importlib.util.find_spec("ziglang")
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise ToolError(
            "no C compiler: install the package ziglang (pip install ziglang), "
            "or set GRAPHC_CC to gcc or clang"
        )
    return str(Path(places[0]) / "zig")


@functools.cache
def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"GRAPHC_CC={shlex.join(command)} cannot be run: {error}") from error
    return f"{shlex.join(command)}: {(done.stdout.splitlines() or ['?'])[0]}"


def _runtime_objects(tools: _Toolchain, command: Sequence[str], is_library: bool) -> Path:
    """A directory of the runtime's object files, from the cache or compiled into it."""
    sources = sorted(
        path
        for folder in (RUNTIME, RUNTIME / "tokenizer")
        for path in folder.glob("*.[ch]")
        if not (is_library and path.name in _RUNNER_SOURCES)
    )
    flags = [*_COMPILE, "-fPIC"] if is_library else [*_COMPILE, "-ffunction-sections"]
    digest = hashlib.sha256(repr((tools.identity, tuple(command[1:]), flags, _GROUPS)).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    place = cache_directory() / "runtime" / digest.hexdigest()[:32]
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tmp-", dir=place.parent) as name:
        work = Path(name)
        for path in sources:
            shutil.copyfile(path, work / path.name)
        objects = work / "objects"
        for group, names in _grouped(sources).items():
            # A command for each group: zig makes one object of all that a command compiles.
            _call(tools, [*command, *flags, "-c", *names], work)
            (objects / group).mkdir(parents=True)
            for path in work.glob("*.o"):
                path.rename(objects / group / path.name)
        try:
            objects.rename(place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same bytes
                raise
    return place


def _grouped(sources: Sequence[Path]) -> dict[str, list[str]]:
    """The C files of each group that is linked or left out as a whole."""
    group_of = {name: group for group, names in _GROUPS.items() for name in names}
    groups: dict[str, list[str]] = {}
    for path in sources:
        if path.suffix == ".c":
            groups.setdefault(group_of.get(path.stem, "common"), []).append(path.name)
    return groups


def _call(tools: _Toolchain, arguments: Sequence[str], work: Path) -> None:
    try:
        with subprocess.Popen(
            arguments,
            cwd=work,
            env={**os.environ, **tools.environment, "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            with _RUNNING_LOCK:
                _RUNNING.add(process)
            try:
                output, _ = process.communicate(timeout=_TIMEOUT_SECONDS)
            except BaseException:
                process.kill()
                raise
            finally:
                with _RUNNING_LOCK:
                    _RUNNING.discard(process)
        if process.returncode == 0:
            return
        reason = f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        reason, output = f"no answer in {_TIMEOUT_SECONDS} s", ""
    except FileNotFoundError as error:
        raise ToolError(f"cannot run {arguments[0]}: {error.strerror}") from error
    kept = _keep(work)
    lines = output.strip().splitlines()[:_STDERR_LINES]
    command = f"cd {shlex.quote(str(kept))} && {shlex.join(arguments)}"
    if tools.environment:
        settings = " ".join(f"{k}={shlex.quote(v)}" for k, v in tools.environment.items())
        command = f"cd {shlex.quote(str(kept))} && {settings} {shlex.join(arguments)}"
    raise ToolError("\n".join((f"the C compiler failed: {reason}", *lines, f"repeat: {command}")))


def _keep(work: Path) -> Path:
    """A copy of the failed tool's directory that stays; the last failure only."""
    kept = cache_directory() / "failed-link"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(work, kept)
    return kept


def _machine(triple: str) -> str:
    return triple.split("-")[0]


def _allowed(triple: str) -> frozenset[str]:
    """Sonames of the C library; before glibc 2.34 it had threads in a library of their own."""
    _, _, version = triple.partition("gnu.")
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    threads = {"libpthread.so.0"} if numbers and numbers < (2, 34) else set()
    return frozenset({"libc.so.6", "libm.so.6"} | threads)


if __name__ == "__main__":
    prepare()
