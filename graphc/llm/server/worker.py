"""The thread that steps the engine while there is work, and ends it cleanly."""

from __future__ import annotations

import threading

from graphc.llm.engine import Engine
from graphc.llm.sequence import Sequence


class Worker:
    """Steps an engine from a thread of its own; requests come from any other."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: Exception | None = None  # a fault of ours: nothing is answered after it
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="graphc engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Say that a request was added or aborted."""
        self._wake.set()

    def stop(self) -> None:
        """End after the step in progress; whatever has not ended then is aborted."""
        self._stopping = True
        self._wake.set()
        self._thread.join()
        self._abandon()

    def _work(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            try:
                while self.engine.has_work and not self._stopping:
                    self.engine.step()
            except Exception as error:
                self.failure = error
                self._abandon()
                raise  # which prints where it came from

    def _abandon(self) -> None:
        with self.engine.lock:
            self.engine.settle()
            left: list[Sequence] = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
            for sequence in left:
                self.engine.abort(sequence)
            self.engine.settle()
