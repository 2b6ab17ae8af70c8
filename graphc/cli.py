"""The command line: parses, calls, prints. Everything heavy is imported by the verb that needs it.

Exit status: 0 ok, 1 a check failed, 2 bad use or bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from graphc import __version__, cli_llm, env
from graphc.config import CACHE_DTYPES
from graphc.errors import ConfigError, GraphcError, ModelError

_PATH = click.Path(path_type=Path)
_DIM = click.option(
    "--dim", "dims", multiple=True, metavar="NAME=N", help="Length of a symbolic dimension."
)
_INPUT = click.option(
    "--input", "inputs", multiple=True, metavar="NAME=FILE", help="An input's array, a .npy file."
)
_TARGET = click.option(
    "--target", default="host", show_default=True, help="Device to compile for: graphc targets."
)
_THREADS = click.option(
    "--threads", type=click.IntRange(1, 1024), help="Threads to use; default: physical cores."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")


def _example(*lines: str) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="graphc")
def cli() -> None:
    """Compile an exported transformer to one self-contained shared library."""
    env.check()


@cli.command(epilog=_example("graphc check model.onnx"))
@click.argument("model", type=_PATH)
@_TARGET
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=N|LOW..HIGH", help="Fix or bound a dimension."
)
@_JSON
def check(model: Path, target: str, dims: tuple[str, ...], as_json: bool) -> None:
    """Say whether MODEL can be compiled and what it is made of, or all that stands in the way."""
    from graphc import config
    from graphc.targets import load as targets

    targets.get(target)
    bounds = config.parse_bounds(dims)
    if not model.exists():
        raise ModelError(f"no such model: {model}")
    from graphc import show
    from graphc.check import check as examine

    report = examine(model, target=target, dims=bounds)
    if as_json:
        click.echo(show.as_json(report.record()))
    else:
        click.echo(show.checked(report) if report.ok else show.blockers(report.blockers))
    if not report.ok:
        what = "1 blocker" if len(report.blockers) == 1 else f"{len(report.blockers)} blockers"
        sys.exit(_fail(f"{model}: {what}", ModelError.exit_status))


@cli.command(
    epilog=_example(
        "graphc compile model.onnx -o model.gc",
        "graphc compile model.onnx --target x86-64-v3 --dim batch=1 --dim sequence=1..512",
    )
)
@click.argument("model", type=_PATH)
@_TARGET
@click.option("-o", "--output", type=_PATH, help="Artifact to write; default: MODEL's name + .gc.")
@click.option(
    "--dim", "dims", multiple=True, metavar="NAME=N|LOW..HIGH", help="Fix or bound a dimension."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads that kernels are cut for.")
@click.option("--tolerance", type=float, help="Difference to allow instead of the table's.")
@click.option("--no-verify", is_flag=True, help="Leave out the comparison with ONNX Runtime.")
@click.option(
    "--quantize", metavar="SCHEME", help="Cheaper products: int8, int8-static, w8, auto ..."
)
@click.option("--calibration", type=_PATH, help="Inputs (.npz, or a folder of them) to learn from.")
@click.option("--calibration-method", default="minmax", help="minmax, percentile or entropy.")
@click.option("--smooth", type=float, default=0.0, help="SmoothQuant's exponent; 0 leaves it out.")
@click.option("--max-error", type=float, default=0.01, help="1 - cosine that `auto` may lose.")
@click.option("--tuning-log", type=_PATH, hidden=True)
@click.option("--max-context", type=int, metavar="N", help="Longest sequence of a language model.")
@click.option(
    "--activations",
    type=click.Choice(["auto", "int8", "float"]),
    default="auto",
    help="What products with weights of few bits take.",
)
@click.option(
    "--decoder",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Give a causal language model a paged cache, or keep it as it is.",
)
@click.option(
    "--cache-dtype",
    type=click.Choice(list(CACHE_DTYPES)),
    default="f32",
    show_default=True,
    help="What the pages of a language model's cache hold.",
)
@_JSON
def compile(
    model: Path,
    target: str,
    output: Path | None,
    dims: tuple[str, ...],
    threads: int | None,
    tolerance: float | None,
    no_verify: bool,
    quantize: str | None,
    calibration: Path | None,
    calibration_method: str,
    smooth: float,
    max_error: float,
    tuning_log: Path | None,
    max_context: int | None,
    activations: str,
    decoder: str,
    cache_dtype: str,
    as_json: bool,
) -> None:
    """Compile MODEL to an artifact: a directory that runs with nothing else installed."""
    from graphc import compiler, config, show

    with show.Progress(_INTERRUPTION.check) as progress:
        artifact = compiler.compile(
            model,
            target,
            output,
            progress=progress,
            dims=config.parse_bounds(dims),
            verify=not no_verify,
            threads=threads,
            tolerance=tolerance,
            quantize=quantize,
            calibration=calibration,
            calibration_method=calibration_method,
            smooth=smooth,
            max_error=max_error,
            tuning_log=tuning_log,
            max_context=max_context,
            activations=activations,
            decoder=decoder,
            cache_dtype=cache_dtype,
        )
    click.echo(show.as_json(show.compiled_record(artifact)) if as_json else show.compiled(artifact))


@cli.command(
    epilog=_example(
        "graphc run model.gc --random --dim batch=1 --dim sequence=16",
        "graphc run model.gc --input input_ids=ids.npy --input attention_mask=m.npy --output o.npz",
    )
)
@click.argument("directory", metavar="DIR", type=_PATH)
@_INPUT
@click.option("--random", "at_random", is_flag=True, help="Draw inputs that are not given.")
@_DIM
@click.option("-o", "--output", type=_PATH, help="Write the outputs to this .npz file.")
@_THREADS
@_JSON
def run(
    directory: Path,
    inputs: tuple[str, ...],
    at_random: bool,
    dims: tuple[str, ...],
    output: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run the artifact in DIR once. Needs no compiler: neither tvm nor onnx is imported."""
    from graphc import arrays, config, module, show, testing

    given = arrays.read(config.parse_inputs(inputs))
    with module.load(directory, threads=threads) as loaded:
        lengths = config.parse_dims(dims)
        feeds = testing.feeds(loaded.inputs, lengths, given, draw=at_random)
        names = [port.name for port in loaded.outputs]
        outputs = dict(zip(names, loaded.run(names, feeds), strict=True))
    if output is not None:
        arrays.write(output, outputs)
    record = show.arrays_record(outputs)
    click.echo(show.as_json(record) if as_json else show.table(show.arrays_rows(record)))


@cli.command(
    epilog=_example("graphc verify model.gc --against model.onnx --dim batch=3 --dim sequence=17")
)
@click.argument("directory", metavar="DIR", type=_PATH)
@click.option("--against", "model", required=True, type=_PATH, help="ONNX file it was made from.")
@_DIM
@_INPUT
@click.option("--tolerance", type=float, help="Difference to allow instead of the table's.")
@_THREADS
@_JSON
def verify(
    directory: Path,
    model: Path,
    dims: tuple[str, ...],
    inputs: tuple[str, ...],
    tolerance: float | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Compare an artifact's outputs with ONNX Runtime's; exit 1 when one is out of tolerance."""
    from graphc import arrays, config, show
    from graphc.verify import verify as compare

    if not model.exists():
        raise ModelError(f"no such model: {model}")
    report = compare(
        directory,
        model,
        config.parse_dims(dims),
        arrays.read(config.parse_inputs(inputs)),
        threads=threads,
        tolerance=tolerance,
    )
    if as_json:
        click.echo(show.as_json(report.record(exact=True)))
    else:
        click.echo(show.table(show.report_rows(report)))
        for reason in report.refused:
            click.echo(f"not compared: {reason}")
    sys.exit(0 if report.passed else 1)


@cli.command(epilog=_example("graphc quality q4.gc --text book.txt --against float.gc"))
@click.argument("directory", metavar="DIR", type=_PATH)
@click.option("--text", required=True, type=_PATH, help="A text file in UTF-8 to predict.")
@click.option("--against", "other", type=_PATH, help="Another artifact, such as the float one.")
@click.option("--tokens", type=click.IntRange(min=2), default=20000, show_default=True)
@_THREADS
@_JSON
def quality(
    directory: Path,
    text: Path,
    other: Path | None,
    tokens: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """How well a language model predicts a text, and how far it is from another one."""
    from graphc import show, text_quality

    try:
        content = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{text}: cannot be read: {error}") from error
    found = text_quality.measure(directory, content, other, tokens=tokens, threads=threads)
    if as_json:
        click.echo(show.as_json(found.record()))
        return
    for name, value in found.record().items():
        if value is not None:
            click.echo(f"{name.replace('_', ' '):<18} {value:.5g}")


@cli.command(
    epilog=_example(
        "graphc bench model.gc --dim batch=1 --dim sequence=128 --against onnxruntime model.onnx",
        "graphc bench llm.gc --prefill 512 --decode 128 --against llama.cpp model.gguf",
    )
)
@click.argument("directory", metavar="DIR", type=_PATH)
@_DIM
@_INPUT
@click.option(
    "--against",
    type=(str, _PATH),
    metavar="onnxruntime,openvino|llama.cpp MODEL",
    help="Measure other runtimes on MODEL side by side.",
)
@click.option("--kernels", is_flag=True, help="Also time each kernel: a roofline table.")
@click.option("--prefill", type=click.IntRange(min=1), help="Tokens that a language model reads.")
@click.option("--decode", type=click.IntRange(min=1), help="Tokens that a language model writes.")
@_THREADS
@click.option(
    "--seconds",
    type=click.FloatRange(0.05, 3600),
    default=5.0,
    show_default=True,
    help="Time to measure each side for.",
)
@_JSON
def bench(
    directory: Path,
    dims: tuple[str, ...],
    inputs: tuple[str, ...],
    against: tuple[str, Path] | None,
    prefill: int | None,
    decode: int | None,
    kernels: bool,
    threads: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Measure an artifact: median time, share of this machine's peak, another runtime beside it."""
    if prefill is not None or decode is not None:
        if dims or inputs:
            raise ConfigError("--prefill and --decode fix all dimensions: leave out --dim, --input")
        cli_llm.bench(directory, prefill or 512, decode or 128, against, threads, seconds, as_json)
        return
    if against is not None and against[0] == "llama.cpp":
        raise ConfigError("llama.cpp runs language models: give --prefill and --decode")
    from graphc import arrays, config, peers, show
    from graphc.bench import bench as measure

    result = measure(
        directory,
        config.parse_dims(dims),
        arrays.read(config.parse_inputs(inputs)),
        against=None if against is None else against[1],
        peers=() if against is None else peers.parse(against[0]),
        kernels=kernels,
        threads=threads,
        seconds=seconds,
    )
    click.echo(show.as_json(result.record()) if as_json else show.bench(result))


@cli.command(epilog=_example("graphc inspect model.gc", "graphc inspect model.onnx"))
@click.argument("path", metavar="DIR|MODEL", type=_PATH)
@_JSON
def inspect(path: Path, as_json: bool) -> None:
    """Show what an artifact or a model file is made of."""
    from graphc import show
    from graphc.inspection import artifact_record, model_record

    record = artifact_record(path) if path.is_dir() else model_record(path)
    click.echo(show.as_json(record) if as_json else show.tree(record))


@cli.command(epilog=_example("graphc targets", "graphc targets host"))
@click.argument("name", required=False)
@_JSON
def targets(name: str | None, as_json: bool) -> None:
    """List the devices to compile for, or show all that is known of one."""
    from graphc import show
    from graphc.targets import load

    if name is not None:
        record = load.get(name).record()
        click.echo(show.as_json(record) if as_json else show.tree(record))
        return
    known = {each: load.get(each).description for each in load.names()}
    rows = [("target", "description"), *known.items()]
    click.echo(show.as_json(known) if as_json else show.table(rows))


for _verb in cli_llm.VERBS:
    cli.add_command(_verb)

OWN_FAULT = 70  # EX_SOFTWARE of sysexits.h: neither the input nor a failed check


def main() -> NoReturn:
    """Run the command line and end the process with its exit status."""
    _INTERRUPTION.listen()
    status = run_command_line()
    if not _INTERRUPTION.seen:
        sys.exit(status)
    # An interruption that passed through Python code which C had called is remembered by CPython,
    # which then ends itself by SIGINT, although it was caught: the status would be lost.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def run_command_line() -> int:
    """What `graphc` does, as a function: errors are printed and become the exit status."""
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Abort:  # click's name for Ctrl-C
        return _fail("interrupted", 130)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "graphc"
        message = error.format_message().rstrip(".")
        return _fail(f"{message[:1].lower()}{message[1:]} (see {command} --help)", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except Exception as error:
        if _INTERRUPTION.seen:  # what a Ctrl-C became on its way through TVM's callbacks
            return _fail("interrupted", 130)
        if isinstance(error, GraphcError):
            return _fail(str(error), error.exit_status)
        if isinstance(error, BrokenPipeError):  # our reader has gone, as in `graphc ... | head`
            sys.stdout = None
            return 141
        if isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            return _fail(f"{place}{error.strerror or error}", 2)
        if isinstance(error, MemoryError):
            return _fail("not enough memory", 2)
        if env.debug() >= 1:
            raise
        return _fail(_own_fault(error), OWN_FAULT)
    return status if isinstance(status, int) else 0


def _own_fault(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return (
        f"a fault of graphc's own, please report it: {type(error).__name__}: {first}\n"
        "GRAPHC_DEBUG=1 shows where it comes from"
    )


def _fail(message: str, status: int) -> int:
    click.echo(f"error: {message}", err=True)
    return status


class _Interruption:
    """Ctrl-C or SIGTERM: leaves through every clean-up, once, and stays known.

    Raised in a callback from TVM it turns into another exception, or is lost; and while other
    threads wait for child processes, Python may never call the handler at all. So the signal is
    also written to a pipe as it arrives, and stages ask `check`.
    """

    _REPEAT_SECONDS = 1.0
    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.seen = False
        self._last = 0.0
        self._arrived = -1

    def listen(self) -> None:
        """Take both signals, from the main thread."""
        self._arrived, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        for number in self._SIGNALS:
            signal.signal(number, self.handle)

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        repeated = self.seen and now - self._last < self._REPEAT_SECONDS
        self.seen, self._last = True, now
        if not repeated:  # a second one at once, from a wrapper, must not stop the clean-up
            raise KeyboardInterrupt

    def check(self) -> None:
        with contextlib.suppress(BlockingIOError):
            if self._arrived >= 0 and set(os.read(self._arrived, 4096)) & set(self._SIGNALS):
                self.seen = True
        if self.seen:
            raise KeyboardInterrupt


_INTERRUPTION = _Interruption()


if __name__ == "__main__":
    main()
