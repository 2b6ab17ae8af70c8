"""What the passes did: how often each rewrite hit, and the nearest misses with their reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """Filled by the passes while they run, read by the driver.

    A near miss is a sentence: what almost matched, where, and why it was refused.
    """

    hits: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)

    def hit(self, rewrite: str) -> None:
        """Count one application of a rewrite."""
        self.hits[rewrite] += 1

    def miss(self, sentence: str) -> None:
        """Keep a refusal, once."""
        if sentence not in self.misses:
            self.misses.append(sentence)
