"""A sample of the compiled toy language models, and that the page's table is that on file.

All of them: `python tests/decoder_table.py` (about 8 minutes).
"""

from __future__ import annotations

import decoder_table
from decoder_table import DECODERS


def test_it_equals_torch_and_the_results_on_file() -> None:
    (architecture,) = (a for a in DECODERS if a.name == "Gemma 3")  # windows and global layers
    result = decoder_table.measure(architecture)
    assert result.torch_export == "ok"
    assert result.max_error is not None and result.max_error <= decoder_table.TOLERANCE
    assert decoder_table.same(result, decoder_table.read()[architecture.name])


def test_the_results_are_of_these_architectures() -> None:
    assert list(decoder_table.read()) == [architecture.name for architecture in DECODERS]


def test_the_page_shows_the_results() -> None:
    assert decoder_table.written_in_page() == decoder_table.table(decoder_table.read().values())
