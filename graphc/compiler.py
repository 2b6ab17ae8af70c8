"""The spine: every stage of a compile, in the order in which a model passes them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc import artifact, cache, env, sources
from graphc.codegen import link
from graphc.config import CompileConfig
from graphc.errors import ArtifactError, ConfigError, GraphcError, ModelError, VerificationError
from graphc.targets import load as targets
from graphc.targets.target import Target

if TYPE_CHECKING:
    import torch

    from graphc.ir import Model
    from graphc.passes.nbits_scheme import NbitsScheme
    from graphc.trial import Trial
    from graphc.verify import Case, Report

Progress = Callable[[str], None]
"""Called with a stage's name when it begins."""


@dataclass(frozen=True)
class Artifact:
    """A finished artifact on disk; `cached` when it was compiled before and only copied."""

    path: Path
    manifest: artifact.Manifest
    cached: bool


def compile(
    source: str | Path,
    target: str = "host",
    output: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Artifact:
    """Compile a model file to an artifact directory; `options` are CompileConfig's fields.

    `output` defaults to the model's name with `.gc` in the working directory. Raises GraphcError
    and leaves nothing behind when the model, an option or the verification fails.
    """
    path = Path(source)
    if not path.exists():
        raise ModelError(f"no such model: {path}")
    config = CompileConfig(
        target=target, output=None if output is None else Path(output), **options
    )
    device = targets.get(config.target)
    if config.threads is not None:
        device = replace(device, threads=config.threads)
    stage = _Stages(progress)
    place = config.output or Path(f"{path.name if path.is_dir() else path.stem}.gc")
    with artifact.publish(place) as draft:
        compiler = link.compiler_identity(_triple(device))
        options = {"config": config.record(), "target": device.record(), "cc": compiler}
        files = [*sources.files(path), *sources.calibration(config.calibration)]
        name = cache.key(files, options)
        fresh = env.no_cache() or env.dump() is not None  # dumps are written by the stages
        cached = not fresh and cache.restore(name, draft.path)
        if not cached:
            quantized = _build(path, config, device, draft, stage)
            if config.verify:
                stage("verify")
                if quantized is None or quantized.decoder is not None:
                    _verify(path, config, device, draft)
                else:
                    _verify_quantized(quantized, path, config, device, draft)
            if not env.no_cache():
                cache.store(name, draft.path)
        manifest = artifact.read_manifest(draft.path)
    stage.done()
    return Artifact(place, manifest, cached)


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Sequence[Any] | Mapping[str, Any] = (),
    *,
    dynamic_shapes: Any = None,
    name: str = "model",
    output: str | Path | None = None,
    **options: Any,
) -> Artifact:
    """Compile a live module, or a program that torch.export made of one, to an artifact.

    `example_inputs` are those of torch.export.export, by position or by name; Dims in
    `dynamic_shapes` keep their names. `output` defaults to `name` with `.gc`; `options` are those
    of `compile`. Raises GraphcError.
    """
    from graphc.frontend.torch_export import require_torch

    require_torch("from_torch")
    from graphc.frontend.torch_export import live

    with tempfile.TemporaryDirectory(prefix="graphc-torch-") as folder:
        path = Path(folder) / f"{name}.pt2"
        live.save(module, example_inputs, dynamic_shapes, path)
        return compile(path, output=output or f"{name}.gc", **options)


def _build(
    source: Path,
    config: CompileConfig,
    device: Target,
    draft: artifact.Draft,
    stage: _Stages,
    observe: Sequence[str] = (),
) -> Model | None:
    """All stages from the model file to a complete artifact in the draft's directory.

    Returns the quantised model when there is one to verify by.
    """
    linker_is_ready = link.prepare_beside(_triple(device))  # long the first time on a machine
    try:
        return _build_beside(source, config, device, draft, stage, observe, linker_is_ready)
    except BaseException:
        link.abandon()  # what it has begun leaves nothing behind
        raise


def _build_beside(
    source: Path,
    config: CompileConfig,
    device: Target,
    draft: artifact.Draft,
    stage: _Stages,
    observe: Sequence[str],
    linker_is_ready: Callable[[], None],
) -> Model | None:
    """The stages of `_build`, beside which the linker makes itself ready."""
    stage("import tvm")  # seconds, and not needed when the cache answers: hence here
    from graphc import frontend
    from graphc.passes.quantize import of_few_bits

    stage("load")
    model = _dumped("1-load", frontend.load(source, dims=config.dims, outputs=observe))
    few_bits = of_few_bits(config.quantize)
    plain = model
    if few_bits is not None:
        stage("quantize")
        model = _few_bits(model, few_bits, config, device, source)
    stage("graph")
    model = _dumped("2-graph", _graph(model, device, config))
    quality = None
    if few_bits is not None:
        if model.decoder is None:
            quality = _few_bits_quality(plain, model, config, device, source)
    elif config.quantize is not None:
        stage("quantize")
        model, quality = _quantize(model, config, device)
        _dumped("2-quantize", model)
    _assemble(model, config, device, draft, stage, linker_is_ready)
    for name, data in frontend.companions(source).items():
        draft.write_file(name, data)
    if model.decoder is not None:
        _write_vocabulary(draft)
    manifest = artifact.read_manifest(draft.path)
    draft.write_manifest(replace(manifest, source=source.name, quality=quality))
    return model if quality is not None else None


def _write_vocabulary(draft: artifact.Draft) -> None:
    """What graphc-run reads text with on the device."""
    from graphc.llm.vocabulary import companion, compile

    vocabulary = companion.vocabulary_of(draft.path)
    if vocabulary is not None:
        draft.write_file(compile.FILE, vocabulary)


def _assemble(
    model: Model,
    config: CompileConfig,
    device: Target,
    draft: artifact.Draft,
    stage: _Stages,
    linker_is_ready: Callable[[], None] | None = None,
    plain: bool = False,
) -> None:
    """The stages from the rewritten graph on; `plain` packs nothing and expands every composite."""
    from graphc.codegen import flops, host
    from graphc.codegen.build import build
    from graphc.codegen.schedule import schedule
    from graphc.passes import pipeline
    from graphc.passes.expand import expand
    from graphc.passes.layout import layout
    from graphc.passes.lower import lower
    from graphc.passes.place_caches import place_caches
    from graphc.passes.quantized_products import quantized_products, with_activations

    work = {name: flops.count(model, name).record() for name in model.signatures}
    model = pipeline.run((quantized_products,), with_activations(model, config.activations))
    stage("layout")
    model = place_caches(model, device, config.cache_dtype)
    model = _dumped("3-layout", expand(model) if plain else layout(model, device))
    stage("lower")
    model = _dumped("4-lower", lower(model, device))
    stage("schedule")
    model = _dumped("5-schedule", schedule(model, device))
    stage("build")
    built = build(model, device)
    stage("weights")
    weights = draft.write_weights(built.weights)
    stage("link")
    if linker_is_ready is not None:
        linker_is_ready()
    features = sorted(device.features)
    kind = None if device.device is None else device.device.kind
    program = host.print_program(
        built.plans, weights, features, kind, built.device_kernels, model.decoder
    )
    env.write_dump("6-host.c", program)
    triple = _triple(device)
    link.build(program, built.objects, draft.path, triple=triple, device=kind)
    draft.write_manifest(
        artifact.Manifest(
            target=artifact.TargetInfo(
                name=device.name,
                machine=device.machine,
                triple=triple,
                cpu_features=tuple(features),
            ),
            functions=tuple(
                replace(host.describe(plan), work=work.get(plan.name)) for plan in built.plans
            ),
            weights=weights,
            kernels=built.kernels,
            llm=host.describe_decoder(model.decoder, config.cache_dtype),
        )
    )


def _few_bits(
    model: Model, scheme: NbitsScheme, config: CompileConfig, device: Target, source: Path
) -> Model:
    """The model as it was loaded with weights of few bits, calibrated where the method asks."""
    from graphc import trial
    from graphc.passes.quantize_nbits import quantize_nbits

    if not scheme.gptq:
        return quantize_nbits(model, scheme)
    data = trial.inputs(model, config.calibration, source)
    return quantize_nbits(model, scheme, _trial(config, device).run, data)


def _few_bits_quality(
    plain: Model, small: Model, config: CompileConfig, device: Target, source: Path
) -> Mapping[str, Any]:
    """What weights of few bits cost, measured on the calibration's inputs."""
    from graphc import quality, trial
    from graphc.passes import pipeline

    assert config.quantize is not None
    data = trial.inputs(plain, config.calibration, source)
    run = _trial(config, device).run
    graph = pipeline.graph(plain, device)
    return quality.measure(graph, small, config.quantize, run, data).record()


def _quantize(
    model: Model, config: CompileConfig, device: Target
) -> tuple[Model, Mapping[str, Any] | None]:
    """The model under the scheme asked for, and the report on what that costs.

    A stepped language model needs caches to run: it is neither calibrated nor measured here.
    """
    from graphc import quality, trial
    from graphc.passes.quantize import quantize
    from graphc.passes.scheme import Request

    assert config.quantize is not None
    if model.decoder is not None:
        return quantize(model, Request(config.quantize, device, config)), None
    tried = _trial(config, device)
    run, data = tried.run, trial.inputs(model, config.calibration)
    request = Request(config.quantize, device, config, run, data, tried.time)
    small = quantize(model, request)
    return small, quality.measure(model, small, config.quantize, run, data).record()


def _trial(config: CompileConfig, device: Target, plain: bool = False) -> Trial:
    """Runs models on this machine, whatever the artifact is for."""
    from graphc.trial import Trial

    host = replace(targets.get("host"), threads=device.threads)

    def assemble(model: Model, draft: artifact.Draft) -> None:
        _assemble(model, config, host, draft, _Stages(None), plain=plain)

    return Trial(assemble, device.threads)


def _graph(model: Model, device: Target, config: CompileConfig) -> Model:
    """The graph passes; a causal language model becomes its step over paged caches."""
    from graphc.passes import pipeline
    from graphc.passes.decoder.derive import derive
    from graphc.passes.decoder.specialise import NotADecoder, specialise

    reason = "decoder = off"
    if config.decoder == "auto" and device.device is not None:
        reason = f"{device.name} keeps no cache in pages, only CPUs do"
    elif config.decoder == "auto":
        try:
            one_sequence = pipeline.graph(specialise(model), device)
            return derive(one_sequence, config.max_context)
        except NotADecoder as error:
            reason = str(error)
            env.log(1, f"not stepped as a causal language model: {reason}")
    if config.max_context is not None:
        raise ConfigError(
            f"max_context = {config.max_context}: only a causal language model has a context, "
            f"leave it out: {reason}"
        )
    return pipeline.graph(model, device)


def _verify(source: Path, config: CompileConfig, device: Target, draft: artifact.Draft) -> None:
    """Compare with the reference on edge shapes; add the figures to the manifest, or raise."""
    from graphc.verify import verify

    try:
        report = verify(
            draft.path,
            source,
            threads=device.threads,
            tolerance=config.tolerance,
            rounds=config.quantize is not None,
        )
    except ArtifactError as error:  # it is for another machine
        raise ConfigError(f"cannot be verified here, see --no-verify: {error}") from error
    for reason in report.refused:
        env.log(1, f"not verified: {reason}")
    if not report.passed:
        raise VerificationError(_explain(report, source, config, device))
    manifest = artifact.read_manifest(draft.path)
    draft.write_manifest(replace(manifest, numerics=report.record()))


def _verify_quantized(
    model: Model, source: Path, config: CompileConfig, device: Target, draft: artifact.Draft
) -> None:
    """Compare with the quantised graph's own definition, kernel by kernel in plain loops.

    What quantisation itself costs is reported as quality, and bounds nothing.
    """
    from graphc.verify import verify_against

    try:
        report = verify_against(
            draft.path, lambda data: _trial(config, device, plain=True).run(model, data)
        )
    except ArtifactError as error:  # it is for another machine
        raise ConfigError(f"cannot be verified here, see --no-verify: {error}") from error
    if not report.passed:
        case = next(case for case in report.cases if not case.passed)
        worst = max(case.outputs, key=lambda output: output.worst)
        raise VerificationError(
            f"{source.name}: output {worst.name!r} departs from the quantised graph's definition "
            f"by {worst.worst:.2g} of its norm (allowed {worst.limit:.2g}): a kernel is wrong, "
            "report it"
        )
    manifest = artifact.read_manifest(draft.path)
    draft.write_manifest(replace(manifest, numerics=report.record()))


def _explain(report: Report, source: Path, config: CompileConfig, device: Target) -> str:
    """Which output is how far off, and the first node from which on it is."""
    case = min((c for c in report.cases if not c.passed), key=lambda c: sum(c.dims.values()))
    worst = max(case.outputs, key=lambda output: output.worst / max(output.limit, 1e-300))
    sizes = ", ".join(f"{name}={value}" for name, value in case.dims.items()) or "fixed shapes"
    return (
        f"{source.name}: output {worst.name!r} departs from {report.reference} by "
        f"{worst.worst:.2g} (allowed {worst.limit:.2g}) at {sizes}\n"
        f"{_first_node(case, source, config, device)}"
    )


def _first_node(case: Case, source: Path, config: CompileConfig, device: Target) -> str:
    if source.suffix != ".onnx":
        return "compare its inner values with graphc.frontend.load(..., outputs=[node names])"
    from graphc.locate import first_departure

    def observe(names: Sequence[str], directory: Path) -> None:
        with artifact.publish(directory) as draft:
            _build(source, config, device, draft, _Stages(None), names)

    try:
        node = first_departure(
            source, case.inputs, observe, threads=device.threads, tolerance=config.tolerance
        )
    except GraphcError as error:
        return f"the first wrong node could not be found: {error}"
    if node is None:
        return "every node agrees when it is observed: a fusion or a schedule is wrong, report it"
    return f"the first value that departs: {node}"


def _triple(device: Target) -> str:
    return f"{device.link.triple}.{device.link.glibc}"


def _dumped(name: str, model: Model) -> Model:
    """The model itself, after writing its IR when GRAPHC_DUMP is set."""
    if env.dump() is not None:
        env.write_dump(f"{name}.py", model.mod.script(show_meta=False))
    return model


class _Stages:
    """Tells of each stage as it begins and logs how long it took."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._name = ""
        self._start = 0.0

    def __call__(self, name: str) -> None:
        self.done()
        self._name, self._start = name, time.perf_counter()
        if self._progress is not None:
            self._progress(name)

    def done(self) -> None:
        if self._name:
            env.log(1, f"{self._name:<12} {time.perf_counter() - self._start:6.2f} s")
        self._name = ""
