"""Families of ATen operators against torch eager, several in each compiled graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from torch_models import BATCH, LENGTH, check, real, whole

Tensor = torch.Tensor


def test_arithmetic_promotes_types_as_torch_does() -> None:
    def model(x: Tensor, n: Tensor) -> Any:
        flag = n > 0
        return (
            x + n,
            n + 1,
            n * 0.5,
            2 - x,
            n / 2,
            x.sub(n, alpha=3),
            flag + n,
            flag * flag,
            flag + flag,
            torch.rsub(x, n, alpha=2),
            x + torch.tensor(2, dtype=torch.int64),
            n + torch.tensor(0.5),
            n.to(torch.int32) + n,
            torch.maximum(x, n.float()),
        )

    check(
        model,
        (real(2, 3), whole(2, 3)),
        (real(4, 3), whole(4, 3)),
        dynamic=({0: BATCH}, {0: BATCH}),
    )


def test_division_and_its_rests() -> None:
    def model(x: Tensor, n: Tensor) -> Any:
        by = torch.tensor([3, -3, 2, -2, 7])
        return (
            n // by,
            n % by,
            torch.fmod(n, by),
            torch.div(n, by, rounding_mode="trunc"),
            torch.div(x, 0.3, rounding_mode="floor"),
            torch.div(x, 0.3, rounding_mode="trunc"),
            x % 0.7,
            torch.fmod(x, 0.7),
            x // 0.5,
            torch.true_divide(n, by),
        )

    check(model, (real(3, 5) * 4, whole(3, 5, low=-20, high=20)))


def test_powers_and_functions() -> None:
    def model(x: Tensor, n: Tensor) -> Any:
        p = x.abs() + 0.1
        return (
            x**2,
            p**0.5,
            p**-1.5,
            2.0**x,
            p**x,
            n.abs() ** 2,
            torch.rsqrt(p),
            torch.log(p),
            torch.log2(p),
            torch.log1p(p),
            torch.exp2(x),
            torch.sqrt(n.abs()),
            torch.sin(n),
            torch.erf(x),
            torch.tanh(x),
            torch.reciprocal(p),
            torch.floor(x),
            torch.ceil(x),
            torch.round(x),
            torch.trunc(x * 3),
            torch.sign(x),
            torch.sign(n),
            n.floor(),
            torch.neg(n),
            x.square(),
        )

    check(model, (real(3, 7), whole(3, 7)))


def test_activations() -> None:
    def model(x: Tensor) -> Any:
        return (
            F.relu(x),
            F.relu6(x * 4),
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.leaky_relu(x, 0.2),
            F.elu(x, 0.7),
            F.softplus(x * 9, 2.0, 10.0),
            F.hardtanh(x, -0.5, 0.7),
            F.hardswish(x),
            F.hardsigmoid(x),
            F.mish(x),
            torch.sigmoid(x),
            F.logsigmoid(x),
            F.softsign(x),
            F.celu(x),
            F.selu(x),
            F.tanhshrink(x),
            F.glu(x, -1),
        )

    check(model, (real(3, 8),))


def test_comparisons_logic_and_choice() -> None:
    def model(x: Tensor, n: Tensor) -> Any:
        a, b = x > 0, n >= 1
        return (
            x == x.round(),
            n != 2,
            n < x,
            n <= 0,
            a & b,
            a | b,
            a ^ b,
            ~a,
            n & 3,
            n | 4,
            n ^ 1,
            ~n,
            torch.logical_and(x, n),
            torch.logical_not(n),
            a == b,
            torch.where(a, x, 0.5),
            torch.where(a, n, x),
            x.masked_fill(b, float("-inf")),
            torch.where(b, 1, 0),
            torch.isnan(torch.log(x)),
            torch.clamp(x, -0.3, 0.4),
            torch.clamp(n, min=0),
            x.clamp_min(0.1),
            torch.clamp(n, max=x.new_tensor(1.5)),
            torch.minimum(n, n * 2),
        )

    check(model, (real(4, 5), whole(4, 5)))


def test_reductions() -> None:
    def model(x: Tensor, n: Tensor) -> Any:
        return (
            x.sum(),
            x.sum(1),
            x.mean((0, 2), keepdim=True),
            n.sum(-1),
            (n > 0).sum(1),
            n.prod(2),
            x.amax(1),
            x.amin((1, 2)),
            x.max(),
            n.min(),
            (n > 3).any(),
            (n > 3).any(1),
            (n > -4).all(2),
            x.var(2, correction=1),
            x.std(1, correction=0),
            x.norm(dim=-1),
            torch.logsumexp(x, 1),
            x.argmax(),
            x.argmax(1),
            x.argmin(2, keepdim=True),
            x.max(1),
            n.min(2),
            x.cumsum(1),
            n.cumsum(-1),
            (n > 0).cumsum(1),
            F.softmax(x, 1),
            F.log_softmax(x, -1),
            x.topk(2),
            x.topk(3, dim=1, largest=False),
        )

    check(
        model,
        (real(2, 3, 4), whole(2, 3, 4)),
        (real(5, 3, 4, seed=1), whole(5, 3, 4, seed=1)),
        dynamic=({0: BATCH}, {0: BATCH}),
    )


def test_views_cuts_and_joins() -> None:
    def model(x: Tensor) -> Any:
        b, s, d = x.shape
        first, second = x.split([2, 4], -1)
        return (
            x.view(b, s, 2, 3),
            x.reshape(-1, d),
            x.flatten(1),
            x.transpose(0, 2),
            x.permute(2, 0, 1),
            x.unsqueeze(1).expand(b, 4, s, d),
            x[:, 1:],
            x[:, :-1],
            x[..., ::2],
            x[:, -1],
            x[:, 0, 1:3],
            torch.cat([x, x[:, :1]], 1),
            torch.stack([x, x * 2], 2),
            first,
            second,
            x.chunk(4, -1),
            x.unbind(2),
            x.repeat(2, 1, 3),
            x.repeat_interleave(2, dim=1),
            x.flip(1),
            x.roll(2, 1),
            x.roll((1, -1), (1, 2)),
            F.pad(x, (1, 2)),
            F.pad(x, (1, -1), value=3.0),
            x.narrow(1, 1, 1),
            x.movedim(0, 1),
            x.new_zeros(s, b),
            torch.arange(s) * 2,
            torch.arange(b, b + s),
            torch.full((b, 2), 1.5),
            x.tril(),
            x.triu(1),
            torch.ones_like(x),
            x.squeeze(0),
            torch.arange(0, 1, 0.25),
            torch.linspace(0, 1, 5),
            x.unfold(2, 2, 2),
            x.sum(2).diff(dim=1),
        )

    check(
        model,
        (real(2, 5, 6),),
        (real(3, 8, 6),),
        (real(2, 3, 6),),
        dynamic=({0: BATCH, 1: torch.export.Dim("length", min=3, max=64)},),
    )


def test_indexing() -> None:
    table = real(11, 4)

    def model(x: Tensor, n: Tensor) -> Any:
        rows = torch.arange(x.shape[0])[:, None]
        return (
            F.embedding(n, table),
            x.index_select(2, torch.tensor([3, 0, 3])),
            table[n],
            x[:, :, [1, -1]],
            x.gather(2, n.clamp(0, 3)[..., None]),
            x[rows, n.clamp(0, 1)],
            x[:, [0, 1], [2, 3]],
            x[rows[:, 0], :, n[:, 0].clamp(0, 3)],
            F.one_hot(n, 11),
        )

    first = (real(2, 5, 4), whole(2, 5, low=0, high=11))
    second = (real(4, 3, 4), whole(4, 3, low=0, high=11, seed=3))
    check(model, first, second, dynamic=({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}))


def test_writing_at_places() -> None:
    def model(x: Tensor) -> Any:
        made = x.clone()
        made[:, 1:3] = 7.0
        made[:, 0] = x[:, 1]
        other = torch.zeros_like(x)
        other[..., 2:] = x[..., :2]
        return made, other

    check(model, (real(2, 5, 4),), (real(3, 5, 4),), dynamic=({0: BATCH},))


def test_products() -> None:
    weight, bias = real(5, 6), real(5)

    def model(x: Tensor) -> Any:
        flat = x[:, 0]
        return (
            F.linear(x, weight, bias),
            F.linear(x, weight),
            x @ weight.T,
            torch.bmm(x, x.transpose(1, 2)),
            torch.addmm(bias, flat, weight.T, beta=0.5, alpha=2.0),
            torch.mv(weight, x[0, 0]),
            torch.baddbmm(x @ x.mT, x, x.mT, beta=0.1, alpha=0.2),
            torch.einsum("bsd,bte->bdte", x, x),
        )

    check(model, (real(2, 3, 6),), (real(4, 3, 6),), dynamic=({0: BATCH},))


def test_normalisation() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.LayerNorm(6)
            self.plain = torch.nn.LayerNorm((4, 6), elementwise_affine=False)
            self.rms = torch.nn.RMSNorm(6)
            self.batch = torch.nn.BatchNorm1d(4)
            self.group = torch.nn.GroupNorm(2, 4)
            for parameter in self.parameters():
                parameter.data.normal_(generator=torch.Generator().manual_seed(2))
            self.batch.running_mean.normal_(generator=torch.Generator().manual_seed(3))

        def forward(self, x: Tensor) -> Any:
            return self.layer(x), self.plain(x), self.rms(x), self.batch(x), self.group(x)

    check(Model(), (real(2, 4, 6),), (real(3, 4, 6),), dynamic=({0: BATCH},))


def test_pictures() -> None:
    kernel, turned = real(4, 3, 3, 3), real(3, 4, 2, 2)

    def model(x: Tensor) -> Any:
        return (
            F.conv2d(x, kernel, padding=1),
            F.conv2d(x, kernel, stride=2, padding="valid"),
            F.conv2d(x, kernel, padding="same"),
            F.conv1d(x[:, :, 0], kernel[:, :, 0], stride=2),
            F.conv_transpose2d(x, turned, stride=2),
            F.max_pool2d(x, 2),
            F.max_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, 4),
            F.interpolate(x, scale_factor=2.0),
            F.interpolate(x, size=(5, 11), mode="bilinear"),
            F.pad(x, (1, 1, 2, 0), mode="reflect"),
            F.interpolate(x, size=(12, 12), mode="bilinear", align_corners=True),
            F.interpolate(x, size=(10, 12), mode="bicubic"),
        )

    check(model, (real(2, 3, 8, 8),), (real(3, 3, 8, 8),), dynamic=({0: BATCH},))


def test_attention_in_all_forms_is_recognised() -> None:
    def model(q: Tensor, k: Tensor, mask: Tensor) -> Any:
        attend = F.scaled_dot_product_attention
        seen = mask[:, None, None, :] > 0
        bias = torch.where(seen, 0.0, -1e9)
        few = k[:, :2]
        return (
            attend(q, k, k),
            attend(q, k, k, is_causal=True),
            attend(q, k, k, attn_mask=seen),
            attend(q, k, k, attn_mask=bias, scale=0.3),
            attend(q, few, few, enable_gqa=True),
        )

    def arguments(batch: int, length: int) -> tuple[Tensor, ...]:
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, 1:] = 0
        mask[-1] = 0  # sees nothing: zeros
        shape = (batch, 4, length, 8)
        return real(*shape), real(*shape, seed=1), mask

    axes = {0: BATCH, 2: LENGTH}
    model_ = check(
        model, arguments(2, 5), arguments(3, 9), dynamic=(axes, axes, {0: BATCH, 1: LENGTH})
    )
    from graphc.passes import pipeline

    assert pipeline.graph(model_, None).statistics["recognise_attention"] == 5
