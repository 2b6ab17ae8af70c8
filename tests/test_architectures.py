"""A sample of the toy architectures, and that the page's table is that of the results on file.

All of them, with the route through ONNX: `python tests/coverage_table.py` (about 15 minutes).
"""

from __future__ import annotations

import coverage_table
import pytest
from architectures import ARCHITECTURES

# One of each kind: rotary decoder with grouped heads, experts, classic decoder, encoder, picture.
SAMPLE = ("Llama", "Mixtral", "GPT-2", "DistilBERT", "ViT")


@pytest.mark.parametrize("name", SAMPLE)
def test_it_equals_torch_and_the_results_on_file(name: str) -> None:
    (architecture,) = (a for a in ARCHITECTURES if a.name == name)
    result = coverage_table.measure(architecture)
    assert result.torch_export == "ok"
    assert result.max_error is not None and result.max_error <= coverage_table.TOLERANCE
    assert coverage_table.same(result, coverage_table.read()[name])


def test_the_results_are_of_these_architectures() -> None:
    assert list(coverage_table.read()) == [architecture.name for architecture in ARCHITECTURES]


def test_the_page_shows_the_results() -> None:
    assert coverage_table.written_in_page() == coverage_table.table(coverage_table.read().values())
