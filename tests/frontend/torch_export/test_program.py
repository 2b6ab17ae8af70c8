"""What a program becomes: names, dimensions, tied weights, constraints, and all its blockers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_models import BATCH, LENGTH, check, exported, imported, real

from graphc.errors import ConfigError, UnsupportedError
from graphc.frontend.torch_export import load_program


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        states = self.embedding(ids)
        return {"logits": self.head(states), "states": (states, states.mean(1))}


IDS = torch.arange(6).reshape(2, 3)
AXES = {0: BATCH, 1: LENGTH}


def test_names_bounds_and_tied_weights() -> None:
    model = imported(Tied(), (IDS,), (AXES,))
    signature = model.signatures["main"]
    assert [port.name for port in signature.inputs] == ["ids"]
    assert signature.inputs[0].value_range == (0, 19)
    assert [port.name for port in signature.outputs] == ["logits", "states.0", "states.1"]
    assert [(d.name, d.lower, d.upper) for d in signature.dims] == [
        ("batch", 1, 64),
        ("length", 2, 64),
    ]
    assert len(model.params) == 1


def test_weights_are_not_copied() -> None:
    module = Tied()
    model = imported(module, (IDS,), (AXES,))
    (weight,) = model.params.values()
    assert weight.ctypes.data == module.head.weight.data_ptr()


def test_dimensions_without_names_are_called_after_their_input() -> None:
    program, _ = exported(Tied(), (IDS,), (AXES,))
    dims = load_program(program).signatures["main"].dims
    assert [dim.name for dim in dims] == ["ids_0", "ids_1"]


def test_dimensions_can_be_fixed_and_bounded() -> None:
    program, names = exported(Tied(), (IDS,), (AXES,))
    signature = load_program(program, names, dims={"batch": 3, "length": (4, 9)}).signatures["main"]
    assert signature.inputs[0].shape[0] == 3
    assert [(d.name, d.lower, d.upper) for d in signature.dims] == [("length", 4, 9)]
    with pytest.raises(ConfigError, match="at most 64"):
        load_program(program, names, dims={"length": (1, 65)})
    with pytest.raises(ConfigError, match="exported for 2 to 64"):
        load_program(program, names, dims={"length": 65})


def test_a_multiple_of_a_dimension_is_checked_when_it_runs() -> None:
    quarter = torch.export.Dim("quarter", min=1, max=16)

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] // 4, 4).sum(1)

    made = check(model, (real(8),), (real(12),), dynamic=({0: 4 * quarter},))
    (constraint,) = made.signatures["main"].constraints
    assert "4*" in constraint.reason


def test_every_blocker_is_listed_with_its_source_line() -> None:
    class Spectral(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            spectrum = torch.fft.rfft(x).abs()
            return torch.linalg.qr(x)[0] + spectrum.sum()

    with pytest.raises(UnsupportedError) as caught:
        imported(Spectral(), (real(2, 4, 4),), ({0: BATCH},))
    assert len(caught.value.blockers) >= 2
    text = str(caught.value)
    assert "linalg_qr" in text and "fft" in text
    assert "test_program.py:" in text and "torch.fft.rfft(x).abs()" in text


def test_a_module_that_changes_a_buffer_is_refused() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(x)
            return self.count * 2

    with pytest.raises(UnsupportedError, match="changes the buffer count"):
        imported(Counter(), (real(3),), ({},))


def test_more_values_can_be_returned() -> None:
    program, names = exported(Tied(), (IDS,), (AXES,))
    model = load_program(program, names, outputs=("embedding",))
    assert [p.name for p in model.signatures["main"].outputs][-1] == "embedding"
