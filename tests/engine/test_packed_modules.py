"""Products of transformers' modules by a backend's linears: what torch's own give, for whatever is called."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.aria.modeling_aria import AriaExperts
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.muse_spark.modeling_muse_spark import MuseSparkExperts
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.olmoe.modeling_olmoe import OlmoeExperts
from transformers.pytorch_utils import Conv1D

from pagewire.engine.model import packed_modules
from pagewire.kernels.backend import Backend
from pagewire.kernels.cpu_backend import CpuBackend
from pagewire.kernels.torch_backend import TorchBackend


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def own_backends() -> list[Backend]:
    native = CpuBackend.load()
    return [TorchBackend(), *([] if native is None else [native])]


@pytest.mark.parametrize("backend", own_backends(), ids=lambda backend: type(backend).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_those_of_torch(backend: Backend, dtype: torch.dtype, bias: bool) -> None:
    """Of inputs of an odd size, too, which are not packed, and of rows in whatever shape."""
    torch.manual_seed(1)
    model = nn.ModuleList([nn.Linear(48, 40, bias=bias), nn.Linear(33, 7, bias=bias), Conv1D(24, 48), Doubled(48, 16)])
    model = model.to(dtype)
    inputs = [torch.randn(1, 5, width).to(dtype) for width in (48, 33, 48, 48)]
    with torch.inference_mode():
        expected = [part(x) for part, x in zip(model, inputs, strict=True)]
        packed_modules.pack(model, backend)
        for part, x, wanted in zip(model, inputs, expected, strict=True):
            got = part(x)
            assert got.dtype == dtype
            torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
            torch.testing.assert_close(part(x[0]), wanted[0], rtol=2e-2, atol=2e-2)
            assert part(x[:, :0]).shape == wanted[:, :0].shape


EXPERTS: dict[str, Callable[[], Any]] = {
    "gated": lambda: OlmoeExperts(said(num_local_experts=7)),
    "transposed, biased, gate and up by turns": lambda: GptOssExperts(
        said(num_local_experts=7, swiglu_alpha=1.7, swiglu_limit=7.0)
    ),
    "transposed": lambda: AriaExperts(said(moe_num_experts=7)),
    "without a gate": lambda: NemotronHExperts(said(n_routed_experts=7, moe_latent_size=None, mlp_hidden_act="relu2")),
    "normed behind": lambda: MuseSparkExperts(said(num_local_experts=7, moe_hidden_size=48, post_norm_eps=1e-6)),
}


def said(**others: Any) -> SimpleNamespace:
    plain = {"num_experts": 7, "hidden_size": 48, "moe_intermediate_size": 24, "intermediate_size": 24}
    return SimpleNamespace(**plain | {"hidden_act": "silu", "_experts_implementation": "eager"} | others)


@pytest.mark.parametrize("backend", own_backends(), ids=lambda backend: type(backend).__name__)
@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("num_rows", [0, 1, 40])
def test_experts_are_those_of_transformers(backend: Backend, name: str, num_rows: int) -> None:
    """Against their eager code, which goes from expert to expert; some experts have no row."""
    torch.manual_seed(2)
    part = EXPERTS[name]()
    for parameter in part.parameters():
        parameter.data.normal_(0, 0.3)
    hidden, weights = torch.randn(num_rows, 48), torch.rand(num_rows, 2)
    routes = torch.stack([torch.randperm(6)[:2] for _ in range(num_rows)]) if num_rows else torch.zeros(0, 2).long()
    with torch.inference_mode():
        expected = part(hidden, routes, weights)
        packed_modules.pack(nn.ModuleList([part]), backend)
        torch.testing.assert_close(part(hidden, routes, weights), expected, rtol=1e-4, atol=1e-4)
    assert bool(part.down_proj.isnan().all())


def test_nobody_reads_values_that_are_gone() -> None:
    linear, derived = nn.Linear(32, 16), Doubled(32, 16)
    packed_modules.pack(nn.ModuleList([linear, derived]), TorchBackend())
    assert (linear.weight.shape, linear.weight.dtype) == ((16, 32), torch.float32)
    assert bool((torch.randn(2, 32) @ linear.weight.t()).isnan().all())
    assert linear.weight.untyped_storage().nbytes() == 4
    assert not derived.weight.isnan().any(), "what derives from a linear is left alone"


def test_a_tied_embedding_stays() -> None:
    embedding, head = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
    head.weight = embedding.weight
    expected = embedding.weight.detach().clone()
    packed_modules.pack(nn.ModuleList([embedding, head]), TorchBackend())
    assert torch.equal(embedding.weight, expected)
    x = torch.randn(3, 32)
    torch.testing.assert_close(head(x), x @ expected.t())


def test_rows_of_another_dtype_are_refused() -> None:
    linear = nn.Linear(32, 16)
    packed_modules.pack(linear, TorchBackend())
    with pytest.raises(TypeError, match=r"bfloat16 with weights of torch\.float32"):
        linear(torch.randn(2, 32).bfloat16())


def test_in_codes_all_are_but_what_chooses_experts() -> None:
    torch.manual_seed(3)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.gate_proj, self.router = (nn.Linear(64, 16) for _ in range(3))

    within = nn.ModuleDict({"gate": nn.ModuleDict({"wg": nn.Linear(64, 16)})})  # as in Hunyuan's mixtures
    model = nn.ModuleDict({"mlp": Block(), "moe": within, "head": nn.Linear(64, 40)})
    x = torch.randn(5, 64)
    parts = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    with torch.inference_mode():
        before = {name: part(x) for name, part in parts.items()}
        packed_modules.pack(model, TorchBackend(), in_codes=True)
        off = {name: float((part(x) - before[name]).abs().max()) for name, part in parts.items()}
    assert {name for name, much in off.items() if much < 1e-5} == {"mlp.gate", "mlp.router", "moe.gate.wg"}
    assert all(much < 0.05 for much in off.values())
