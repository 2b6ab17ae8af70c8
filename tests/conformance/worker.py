"""Runs cases in processes of their own, one at a time each: a crash or a hang costs one case."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import onnx
from cases import Case

TIMEOUT = 120.0
"""Seconds for one case, with the start of its process."""


@dataclass(frozen=True)
class Outcome:
    """`reason` is empty when the case passed; `fixed`: with inputs compiled in."""

    name: str
    reason: str = ""
    fixed: bool = False
    seconds: float = field(default=0.0, compare=False)


def run_case(case: Case) -> Outcome:
    """Compiles and runs one case, and compares dtype, shape and values."""
    from backend import GraphcBackend

    from graphc.errors import GraphcError

    start = time.perf_counter()
    model = onnx.ModelProto.FromString(case.model)
    given = dict(zip((info.name for info in model.graph.input), case.inputs, strict=False))
    settings = {name: given[name] for name in case.settings if name in given}
    try:
        prepared = GraphcBackend.prepare(model, settings=settings)
        reason = _difference(prepared.run(case.inputs), case)
        return Outcome(case.name, reason, bool(prepared.fixed), time.perf_counter() - start)
    except GraphcError as error:
        blockers = getattr(error, "blockers", ())
        reason = f"{type(error).__name__}: {blockers[0] if blockers else error}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this case's result
        lines = str(error).strip().splitlines() or [""]
        reason = f"{type(error).__name__}: {lines[-1]}"
    return Outcome(case.name, _tidy(reason), False, time.perf_counter() - start)


def _difference(results: Sequence[np.ndarray], case: Case) -> str:
    """What is wrong with the results, empty when nothing is."""
    if len(results) != len(case.outputs):
        return f"wrong: {len(results)} outputs, not {len(case.outputs)}"
    for index, (got, want) in enumerate(zip(results, case.outputs, strict=True)):
        if got.dtype != want.dtype:
            return f"wrong: output {index} is {got.dtype}, not {want.dtype}"
        if got.shape != want.shape:
            return f"wrong: output {index} has shape {got.shape}, not {want.shape}"
        rtol = case.rtol
        if got.dtype.kind not in "biufc":  # numpy compares bfloat16 and smaller types in float32
            rtol = max(rtol, 2**-6 if str(got.dtype) == "bfloat16" else rtol)
            got, want = got.astype("float32"), want.astype("float32")
        if got.dtype.kind in "bui":
            close = got == want
            if np.array_equal(got, want):
                continue
        with np.errstate(all="ignore"):
            close = np.isclose(got, want, rtol=rtol, atol=case.atol, equal_nan=True)
        if not close.all():
            return f"wrong: {int((~close).sum())} of {close.size} values of output {index} differ"
    return ""


def _tidy(reason: str) -> str:
    """One line without what changes from run to run."""
    reason = re.sub(r"\S*/model\.onnx(: )?", "", reason)
    reason = re.sub(r"0x[0-9a-f]+", "0x..", reason)
    return " ".join(reason.split())[:240]


def _serve(pipe: Connection) -> None:
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM and LLVM write to it as they fail
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run_case(pipe.recv()))


class _Worker:
    """A process with the case that it runs."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process: Any = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.case: Case | None = None
        self.started = 0.0

    def give(self, case: Case) -> None:
        self.case, self.started = case, time.monotonic()
        self.pipe.send(case)

    def result(self) -> Outcome:
        assert self.case is not None
        try:
            outcome: Outcome = self.pipe.recv()
            return outcome
        except (EOFError, OSError):
            self.process.join()
            return Outcome(self.case.name, f"crash: exit status {self.process.exitcode}")

    def late(self) -> bool:
        return self.case is not None and time.monotonic() - self.started > TIMEOUT

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run(cases: Sequence[Case], jobs: int) -> Iterator[Outcome]:
    """The outcomes of all cases, in the order in which they end."""
    pending = list(reversed(cases))
    workers = [_Worker() for _ in range(min(jobs, len(cases)))]
    try:
        while pending or any(worker.case for worker in workers):
            for worker in workers:
                if worker.case is None and pending:
                    worker.give(pending.pop())
            busy = [worker for worker in workers if worker.case]
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for position, worker in enumerate(workers):
                if worker.case is None:
                    continue
                if worker.pipe in ready:
                    outcome = worker.result()
                elif worker.late():
                    outcome = Outcome(worker.case.name, f"timeout: {TIMEOUT:.0f} s")
                else:
                    continue
                yield outcome
                worker.case = None
                if outcome.reason.startswith(("crash", "timeout")):
                    worker.stop()
                    workers[position] = _Worker()
    finally:
        for worker in workers:
            worker.stop()
