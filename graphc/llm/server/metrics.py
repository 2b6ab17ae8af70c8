"""Counters in Prometheus' text format."""

from __future__ import annotations

from graphc.llm.engine import Engine


def text(engine: Engine) -> str:
    """What the engine did since it began, and what it holds now."""
    counters, scheduler, model = engine.counters, engine.scheduler, engine.model
    rows = (
        ("requests_total", "counter", "sequences that came in", counters.requests),
        ("prompt_tokens_total", "counter", "tokens of prompts", counters.prompt_tokens),
        ("answer_tokens_total", "counter", "tokens of answers", counters.answer_tokens),
        ("steps_total", "counter", "steps of the model", counters.steps),
        ("preemptions_total", "counter", "sequences sent back for pages", scheduler.preemptions),
        ("running", "gauge", "sequences in the cache", len(scheduler.running)),
        ("waiting", "gauge", "sequences in the queue", engine.queued),
        ("cache_pages", "gauge", "pages of the cache", model.pages_total),
        ("cache_pages_free", "gauge", "pages left by the last step", scheduler.pages_left),
    )
    return "".join(
        f"# HELP graphc_{name} {meaning}\n# TYPE graphc_{name} {kind}\ngraphc_{name} {value}\n"
        for name, kind, meaning, value in rows
    )
