"""Compiles toy language models to steps over paged caches and compares them with torch's forward.

export PYTHONPATH=tests
    python tests/decoder_table.py               compare all with the results on file
python tests/decoder_table.py --write       measure all, write the results and the table
python tests/decoder_table.py --write GPT-2 these only

Three sequences are fed in ragged batches by chunks of 7, 1, 1, 5, 1, 8 tokens.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from architectures import ARCHITECTURES, VOCABULARY, Architecture, export, text

import graphc
from graphc import frontend
from graphc.compiler import Artifact
from graphc.errors import GraphcError
from graphc.frontend.torch_export.program import quiet
from graphc.llm.model import LanguageModel
from graphc.passes import pipeline
from graphc.passes.decoder.derive import derive
from graphc.passes.decoder.specialise import NotADecoder, specialise
from graphc.targets import load as targets
from graphc.verify import round_up
from graphc.verify_decoder import step_all

RESULTS = Path(__file__).with_name("decoder_results.json")
PAGE = Path(__file__).parents[1] / "docs" / "decoders.md"
BEGIN, END = "<!-- decoders: generated -->", "<!-- decoders: end -->"
TOLERANCE = 1e-4
LENGTHS = (37, 23, 17)
_SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# Causal language models of the list of architectures, up to the last of them, and some more.
DECODERS = (
    *ARCHITECTURES[: [a.name for a in ARCHITECTURES].index("RecurrentGemma") + 1],
    text("GPT-OSS", "GptOssConfig", "GptOssForCausalLM", **_SMALL, head_dim=8, sliding_window=8,
         num_local_experts=4, num_experts_per_tok=2),
    text("Gemma", "GemmaConfig", "GemmaForCausalLM", **_SMALL, head_dim=8),
    text("Phi", "PhiConfig", "PhiForCausalLM", **_SMALL),
    text("StarCoder2", "Starcoder2Config", "Starcoder2ForCausalLM", **_SMALL, sliding_window=8),
    text("GPT-BigCode", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", vocab_size=VOCABULARY,
         n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2),
    text("GLM-4", "Glm4Config", "Glm4ForCausalLM", **_SMALL, head_dim=8),
)  # fmt: skip
BY_ONNX = ("Llama", "Mistral", "Mixtral", "Qwen2", "Gemma 2", "Phi-3", "GPT-2", "GPT-NeoX",
           "OPT", "BLOOM", "Falcon", "MPT")  # fmt: skip

Reference = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Result:
    """A route is "ok", what stands in the way, or "" when it was not tried; errors are rounded up.

    `caches` are heads x width of the caches of one layer; `bytes` those of a token in all.
    """

    name: str
    torch_export: str
    max_error: float | None = None
    caches: str = ""
    bytes: int = 0
    onnx: str = ""


def reference(architecture: Architecture) -> Reference:
    """All logits of one sequence by torch, eager."""
    module = architecture.build()

    def run(tokens: np.ndarray) -> np.ndarray:
        with quiet(), torch.no_grad():
            return module(input_ids=torch.tensor(tokens[None])).logits[0].numpy()

    return run


def step_error(artifact: Path, full: Reference) -> float:
    """The largest difference of a step's logits from those of the full forward."""
    generator = np.random.default_rng(0)
    sequences = [generator.integers(3, VOCABULARY, length) for length in LENGTHS]
    with LanguageModel.open(artifact, cache_tokens=256) as model:
        found = step_all(model, sequences)
    pairs = zip(found, sequences, strict=True)
    return max(float(np.abs(logits - full(tokens)).max()) for logits, tokens in pairs)


def compiled(source: Path) -> Artifact:
    """The artifact beside a model; GraphcError where it has no step."""
    artifact = graphc.compile(source, output=source.with_suffix(".gc"), verify=False)
    if artifact.manifest.llm is None:
        graph = pipeline.graph(specialise(frontend.load(source)), targets.get("host"))
        derive(graph)  # raises the reason
    return artifact


def measure(architecture: Architecture) -> Result:
    """Exports, derives and compares one architecture."""
    full = reference(architecture)
    onnx = _by_onnx(architecture, full) if architecture.name in BY_ONNX else ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt2"
        try:
            with quiet():
                torch.export.save(export(architecture), path)
        except Exception as error:  # noqa: BLE001  whatever the model's code provokes
            return Result(architecture.name, f"torch.export: {_short(error)}", onnx=onnx)
        try:
            artifact = compiled(path)
        except (GraphcError, NotADecoder) as error:
            return Result(architecture.name, _short(error), onnx=onnx)
        error = step_error(artifact.path, full)
    llm = artifact.manifest.llm
    assert llm is not None
    verdict = "ok" if error <= TOLERANCE else "wrong numbers"
    caches = sorted({f"{c.heads} x {c.width}" for c in llm.caches})
    size = sum(4 * c.heads * c.width for c in llm.caches)
    return Result(architecture.name, verdict, round_up(error), ", ".join(caches), size, onnx)


def export_onnx(architecture: Architecture, path: Path) -> None:
    """The model by torch.onnx.export, without a cache."""
    inputs = architecture.inputs(2, 7)
    dynamic = {name: dict(architecture.dynamic.get(name, {})) for name in inputs}
    with quiet(), torch.no_grad():
        torch.onnx.export(
            architecture.build(), (), path, kwargs=inputs, dynamic_shapes=dynamic,
            dynamo=True, optimize=True, verbose=False, external_data=False,
        )  # fmt: skip


def _by_onnx(architecture: Architecture, full: Reference) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            export_onnx(architecture, path)
        except Exception as error:  # noqa: BLE001  whatever the exporter raises
            return f"torch.onnx: {_short(error)}"
        try:
            error = step_error(compiled(path).path, full)
        except (GraphcError, NotADecoder) as error:
            return _short(error)
    return "ok" if error <= TOLERANCE else f"wrong numbers: {error:.1e}"


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    headline = "Constraints violated" in lines[0]
    line = (lines[1] if len(lines) > 1 and headline else lines[0]).removeprefix("- ")
    line = line.partition(". If you")[0]
    return f"{line[:117]}..." if len(line) > 120 else line


# -- results and table ---------------------------------------------------------------------


def read() -> dict[str, Result]:
    records = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {record["name"]: Result(**record) for record in records}


def write(results: Iterable[Result]) -> None:
    known = {**(read() if RESULTS.exists() else {}), **{r.name: r for r in results}}
    ordered = [asdict(known[a.name]) for a in DECODERS if a.name in known]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table(results: Iterable[Result]) -> str:
    lines = [
        "| architecture | torch.export | largest error | caches (heads x width) | bytes a token "
        "| torch.onnx |",
        "|---|---|---|---|---|---|",
    ]
    for r in results:
        error = "" if r.max_error is None else f"{r.max_error:g}"
        cells = (r.name, r.torch_export, error, r.caches, str(r.bytes or ""), r.onnx)
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def written_in_page() -> str:
    """The table between the page's markers."""
    _, old, _ = _parts()
    return old.strip()


def write_page() -> None:
    """Put the results on file between the page's markers."""
    head, _, tail = _parts()
    PAGE.write_text(f"{head}{BEGIN}\n{table(read().values())}\n{END}{tail}", encoding="utf-8")


def _parts() -> tuple[str, str, str]:
    text = PAGE.read_text(encoding="utf-8")
    assert BEGIN in text and END in text, f"{PAGE.name} has no block {BEGIN}"
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    return head, old, tail


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    chosen = [a for a in DECODERS if not options.names or a.name in options.names]
    known = read() if RESULTS.exists() else {}
    different = 0
    for architecture in chosen:
        result = measure(architecture)
        print(result, flush=True)
        if options.write:
            write([result])
        elif not same(result, known.get(architecture.name)):
            different += 1
            print(f"  was {known.get(architecture.name)}")
    if options.write:
        write_page()
    return 1 if different else 0


def same(result: Result, known: Result | None) -> bool:
    """Equal but for the error, which differs with the machine's vectors."""
    return known is not None and asdict(result) | {"max_error": 0} == asdict(known) | {
        "max_error": 0
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
