"""Verification: edge shapes, the report, and what happens when numbers are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny_models
from support import CommandLine, Compiled

from graphc import edges, verify
from graphc.artifact import DimInfo, FunctionInfo, PortInfo
from graphc.errors import ConfigError, InputError, ModelError, VerificationError


@dataclass(frozen=True)
class FakeModule:
    """As much of a module as choosing shapes needs."""

    inputs: tuple[PortInfo, ...]
    dims: tuple[DimInfo, ...]

    @property
    def functions(self) -> dict[str, FunctionInfo]:
        return {"main": FunctionInfo("main", self.inputs, self.inputs, self.dims)}

    def infer_shapes(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return shapes


def shapes(port: PortInfo, *dims: DimInfo) -> dict[str, dict[str, int]]:
    return dict(edges.shapes(FakeModule((port,), dims)))  # type: ignore[arg-type]


IDS = PortInfo("ids", "int64", ("batch", "sequence"))


def test_free_dimensions() -> None:
    assert shapes(IDS, DimInfo("batch"), DimInfo("sequence")) == {
        "one": {"batch": 1, "sequence": 1},
        "odd": {"batch": 3, "sequence": 17},
        "large": {"batch": 2, "sequence": 512},
    }


def test_bounds_are_kept() -> None:
    found = shapes(IDS, DimInfo("batch", 4, 4), DimInfo("sequence", 8, 128))
    assert found == {
        "one": {"batch": 4, "sequence": 8},
        "odd": {"batch": 4, "sequence": 17},
        "large": {"batch": 4, "sequence": 128},
    }


def test_no_dimensions_is_one_case() -> None:
    assert shapes(PortInfo("x", "float32", (2, 3))) == {"one": {}}


def test_large_is_affordable() -> None:
    image = PortInfo("x", "float32", ("batch", 64, "height", "width"))
    found = shapes(image, DimInfo("batch"), DimInfo("height"), DimInfo("width"))["large"]
    assert 1 << 19 < 64 * found["batch"] * found["height"] * found["width"] <= 1 << 21


def test_lengths_are_stretched_within_their_bounds() -> None:
    module = FakeModule((IDS,), (DimInfo("batch"), DimInfo("sequence", 1, 40)))
    tried = list(edges.stretched({"batch": 3, "sequence": 17}, module))  # type: ignore[arg-type]
    assert [sizes["sequence"] for sizes in tried] == [17, 34, 40]


@pytest.mark.parametrize(
    ("figure", "rounded"),
    [(0.0, 0.0), (1e-6, 1e-6), (1.1e-6, 2e-6), (3e-5, 5e-5), (6e-5, 1e-4), (9.99, 10.0)],
)
def test_round_up(figure: float, rounded: float) -> None:
    assert verify.round_up(figure) == rounded


def test_report_of_a_right_model(mlp: Compiled) -> None:
    report = verify.verify(mlp.artifact, mlp.model)
    assert report.passed and not report.refused
    assert [case.dims for case in report.cases] == [{"batch": 1}, {"batch": 3}, {"batch": 2}]
    (given,) = verify.verify(mlp.artifact, mlp.model, {"batch": 7}).cases
    assert given.outputs[0].shape == (7, 40) and given.outputs[0].max_abs < 1e-5


def test_what_does_not_fit_is_refused(mlp: Compiled, embedding: Compiled) -> None:
    with pytest.raises(ConfigError, match="no such dimension"):
        verify.verify(mlp.artifact, mlp.model, {"bath": 7})
    with pytest.raises((ModelError, InputError)):
        verify.verify(mlp.artifact, embedding.model, {"batch": 7})


def test_the_command(graphc_cli: CommandLine, mlp: Compiled) -> None:
    done = graphc_cli("verify", mlp.artifact, "--against", mlp.model, "--dim", "batch=3")
    assert done.status == 0 and "max abs" in done.out and "ok" in done.out


def plant(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str], bool]) -> None:
    """The importer takes Relu for Sigmoid at the nodes whose labels `wrong` accepts."""
    from graphc.frontend.onnx.context import Context
    from graphc.frontend.onnx.node import Node
    from graphc.frontend.onnx.table import Operator, Registry, Result

    find = Registry.find

    def planted(self: Registry, domain: str, op_type: str, version: int) -> Operator | None:
        right = find(self, domain, op_type, version)
        if op_type != "Relu" or right is None:
            return right
        other = find(self, domain, "Sigmoid", version)
        assert other is not None

        def convert(context: Context, node: Node) -> Result:
            return (other if wrong(node.label) else right).convert(context, node)

        return replace(right, convert=convert)

    monkeypatch.setattr(Registry, "find", planted)


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAPHC_NO_CACHE", "1")
    return tiny_models.deep_perceptron(tmp_path / "deep.onnx")


@pytest.mark.parametrize("number", [0, 11, 19])
def test_a_planted_fault_is_found(
    graphc_cli: CommandLine, monkeypatch: pytest.MonkeyPatch, deep: Path, number: int
) -> None:
    plant(monkeypatch, lambda label: label.endswith(f"'gate_{number}'"))
    output = deep.with_suffix(".gc")
    message = graphc_cli.refused("compile", deep, "-o", output, status=1)
    assert "output 'y' departs" in message
    assert f"Relu node 'gate_{number}'" in message
    assert sorted(deep.parent.iterdir()) == [deep]


def test_no_verify_leaves_the_check_out(
    graphc_cli: CommandLine, monkeypatch: pytest.MonkeyPatch, deep: Path
) -> None:
    plant(monkeypatch, lambda label: label.endswith("'gate_3'"))
    output = deep.with_suffix(".gc")
    assert graphc_cli("compile", deep, "-o", output, "--no-verify").status == 0
    assert graphc_cli("verify", output, "--against", deep).status == 1


def test_a_fault_that_hides_when_watched_is_told(
    monkeypatch: pytest.MonkeyPatch, deep: Path
) -> None:
    from graphc import compiler, locate

    plant(monkeypatch, lambda label: label.endswith("'gate_3'"))
    monkeypatch.setattr(locate, "first_departure", lambda *_, **__: None)
    with pytest.raises(VerificationError, match="a fusion or a schedule is wrong"):
        compiler.compile(deep, output=deep.with_suffix(".gc"))
