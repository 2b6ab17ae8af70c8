"""The command line's verbs for language models: generate, chat and serve; bench's other half."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from graphc import env
from graphc.errors import ConfigError, InputError

if TYPE_CHECKING:
    from graphc.llm.llm import LLM

_PATH = click.Path(path_type=Path)
_F = TypeVar("_F", bound=Callable[..., object])
# Option, type, what it says; names are those of SamplingParams.
_SAMPLING: tuple[tuple[str, Any, str], ...] = (
    ("--max-tokens", click.IntRange(min=0), "Longest answer; default: what the context holds."),
    ("--temperature", float, "0 takes the likeliest token; default: the model's own, else 1."),
    ("--top-k", int, "Draw among the K likeliest tokens; 0: all."),
    ("--top-p", float, "Draw among the likeliest tokens of this total probability."),
    ("--min-p", float, "Leave out tokens less likely than this share of the likeliest."),
    ("--typical-p", float, "Draw among the most typical tokens of this total probability."),
    ("--repetition-penalty", float, "Above 1: tokens seen before become less likely."),
    ("--frequency-penalty", float, "Subtracted for each time that the answer has a token."),
    ("--presence-penalty", float, "Subtracted once for each token that the answer has."),
    ("--seed", int, "The same seed gives the same answer."),
)


def _sampling(command: _F) -> _F:
    """Adds the options above and --stop."""
    stop = click.option("--stop", multiple=True, help="Text that ends the answer.")
    for name, kind, meaning in reversed(_SAMPLING):
        command = click.option(name, type=kind, help=meaning)(command)
    return stop(command)


def _model(command: _F) -> _F:
    threads = click.option("--threads", type=click.IntRange(1, 1024), help="Threads to use.")
    cache = click.option(
        "--cache-tokens", type=click.IntRange(min=1), help="Tokens that the cache holds."
    )
    return click.argument("directory", metavar="DIR", type=_PATH)(threads(cache(command)))


def _example(*lines: str) -> str:
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the user gave; the model's own defaults stand for the others."""
    return {name: value for name, value in options.items() if value not in (None, ())}


def _open(directory: Path, threads: int | None, cache_tokens: int | None) -> LLM:
    from graphc.llm.llm import LLM

    return LLM(directory, threads=threads, cache_tokens=cache_tokens)


@click.command(
    epilog=_example(
        'graphc generate model.gc --prompt "The capital of France is" --max-tokens 16',
        "graphc generate model.gc --prompt-file question.txt --temperature 0 --json",
    )
)
@_model
@click.option("--prompt", "prompts", multiple=True, help="Text to continue; may be repeated.")
@click.option("--prompt-file", type=_PATH, help="A file with the text, or - for standard input.")
@_sampling
@click.option("--logprobs", type=click.IntRange(0, 64), help="Alternatives to report, with --json.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def generate(
    directory: Path,
    threads: int | None,
    cache_tokens: int | None,
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a text with the language model in DIR."""
    texts: list[str | bytes] = list(prompts)
    if prompt_file is not None:
        texts.append(_read(prompt_file))
    if not texts:
        raise InputError("there is nothing to continue: give --prompt or --prompt-file")
    with _open(directory, threads, cache_tokens) as llm:
        if len(texts) == 1 and not as_json:
            for piece in llm.stream(texts[0], **_given(options)):
                click.echo(piece.text, nl=False)
            click.echo()
            return
        start = time.perf_counter()
        answers = llm.generate(texts, **_given(options))
        seconds = time.perf_counter() - start
        if not as_json:
            click.echo("\n---\n".join(answer.text for answer in answers))
            return
        from graphc.llm.records import answer_record

        records = [answer_record(answer, llm.tokenizer) for answer in answers]
        click.echo(json.dumps({"answers": records, "seconds": round(seconds, 6)}, indent=2))


@click.command(epilog=_example("graphc chat model.gc", 'echo "Hello" | graphc chat model.gc'))
@_model
@click.option("--system", help="What the model is told before the conversation.")
@click.option("--template", help="Which of the model's chat templates; default: default.")
@_sampling
def chat(
    directory: Path,
    threads: int | None,
    cache_tokens: int | None,
    system: str | None,
    template: str | None,
    **options: Any,
) -> None:
    """Talk to the language model in DIR; Ctrl-C stops an answer, /exit ends."""
    from graphc.llm.conversation import Conversation

    with _open(directory, threads, cache_tokens) as llm:
        params = llm.params(**_given(options))
        talk = Conversation(llm, params, system=system, template=template)
        while (line := _ask()) is not None:
            if not line.strip():
                continue
            if line.strip() == "/exit":
                return
            if line.strip() == "/reset":
                talk.reset()
                continue
            with _stoppable() as stopped:
                for piece in talk.ask(line):
                    click.echo(piece, nl=False)
                    if stopped():
                        talk.stop()
            click.echo(("" if talk.ended_by_itself else " [stopped]") + "\n")
            click.echo(click.style(talk.speed(), dim=True), err=True)


@click.command(
    epilog=_example(
        "graphc serve model.gc --port 8000",
        "GRAPHC_API_KEY=secret graphc serve model.gc --host 0.0.0.0",
    )
)
@_model
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True)
@click.option("--name", help="The model's name in requests; default: that of DIR.")
@click.option("--queue", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--max-sequences", type=click.IntRange(1, 512), default=64, show_default=True)
@click.option("--token-budget", type=click.IntRange(1, 65536), default=512, show_default=True)
def serve(
    directory: Path,
    threads: int | None,
    cache_tokens: int | None,
    host: str,
    port: int,
    name: str | None,
    queue: int,
    max_sequences: int,
    token_budget: int,
) -> None:
    """Serve the language model in DIR with OpenAI's HTTP interface.

    Clients must send the key in GRAPHC_API_KEY, if that is set.
    """
    from graphc.llm.llm import LLM
    from graphc.llm.server.serve import is_loopback
    from graphc.llm.server.serve import serve as listen

    key = env.api_key()
    if key is None and not is_loopback(host):
        click.echo(f"warning: anybody who reaches {host} can use it: set GRAPHC_API_KEY", err=True)
    with LLM(
        directory,
        threads=threads,
        cache_tokens=cache_tokens,
        max_sequences=max_sequences,
        token_budget=max(token_budget, max_sequences),
    ) as llm:
        model = name or directory.resolve().name.removesuffix(".gc")
        llm.tokenizer  # noqa: B018 (says now, and not to the first client, that there is none)
        listen(
            llm,
            model=model,
            host=host,
            port=port,
            api_key=key,
            queue=queue,
            ready=lambda address: click.echo(f"serving {model} at {address}"),
        )


def bench(
    directory: Path,
    prefill: int,
    decode: int,
    against: tuple[str, Path] | None,
    threads: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """What graphc bench does with a language model."""
    from graphc import bench_llm, show

    if against is not None and against[0] != "llama.cpp":
        raise ConfigError(f"{against[0]} has no paged cache: compare with llama.cpp FILE.gguf")
    other = None if against is None else against[1]
    result = bench_llm.bench(
        directory, prefill, decode, against=other, threads=threads, seconds=seconds
    )
    if as_json:
        click.echo(show.as_json(result.record()))
        return
    click.echo(
        f"{prefill} tokens read, {decode} written, {result.threads} threads; decode reads "
        f"{100 * result.bandwidth_share:.0f} % of {result.read_gbs:.1f} GB/s\n"
        f"{show.table(bench_llm.table_rows(result))}"
    )


def _ask() -> str | None:
    """A line of the user's; None at the end of input."""
    terminal = sys.stdin.isatty()
    while True:
        try:
            return input("> " if terminal else "")
        except EOFError:
            if terminal:
                click.echo()
            return None
        except KeyboardInterrupt:
            if not terminal:
                raise
            click.echo("\n(/exit ends, /reset begins anew)")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """While it lasts Ctrl-C only makes the function yielded say so."""
    seen: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _read(place: Path) -> bytes:
    if str(place) == "-":
        return sys.stdin.buffer.read()
    try:
        return place.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {place}: {error.strerror}") from error


VERBS = (generate, chat, serve)
