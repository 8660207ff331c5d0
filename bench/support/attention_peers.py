"""PyTorch's own attention, and FlashInfer's where it is installed, over the same sequences: what ours is held against.

PyTorch's are given contiguous keys and values, which no server has: they look nothing up. A peer that fails on a shape
or a device, or is not installed, is not among those that are returned; why is printed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[[], object]

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
WORKSPACE_BYTES = 128 << 20  # as FlashInfer recommends


def torch_peers(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool, flex: bool = False
) -> dict[str, Attend]:
    """Return those for q `[S, Hq, T, D]` over k and v `[S, Hk, n, D]`, by name; `flex`: FlexAttention too.

    That is compiled for each shape, which takes seconds. Its mask is causal whatever `is_causal` says.
    """
    if not q.is_cuda:
        return {}

    def fused(backend: SDPBackend) -> Attend:
        def attend() -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

        return attend

    makers = {name: functools.partial(fused, backend) for name, backend in BACKENDS.items()}
    return _those_that_run(makers | ({"flex": lambda: _flex(q, k, v)} if flex else {}))


def flashinfer_decode(
    q: torch.Tensor, pool: torch.Tensor, layer: int, table: torch.Tensor, kv_len: int
) -> dict[str, Attend]:
    """Return FlashInfer's decode of q `[S, Hq, D]` over pool `[N, L, 2, Hk, B, D]`; empty where it is not installed.

    `table` `[S, M]` names the blocks of sequences that all have `kv_len` tokens.
    """
    if not q.is_cuda or importlib.util.find_spec("flashinfer") is None:
        return {}

    def planned() -> Attend:
        flashinfer = importlib.import_module("flashinfer")
        num_sequences, num_blocks = table.shape
        # FA2's by name: its own choice on this GPU is FA3, which it compiles for minutes.
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            _workspace(q.device), "HND", use_tensor_cores=True, backend="fa2"
        )
        starts = torch.arange(0, (num_sequences + 1) * num_blocks, num_blocks, dtype=torch.int32, device=q.device)
        last = torch.full(
            (num_sequences,), (kv_len - 1) % pool.shape[4] + 1, dtype=torch.int32, device=q.device
        )  # tokens of the last block
        wrapper.plan(
            starts, table.flatten().int(), last, q.shape[1], pool.shape[3], q.shape[2], pool.shape[4],
            q_data_type=q.dtype,
        )  # fmt: skip
        pages = pool[:, layer]  # [N, 2, Hk, B, D]
        return lambda: wrapper.run(q, pages)

    return _those_that_run({"flashinfer": planned})


@functools.cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Return what all wrappers of a device share: a plan lies in memory of its wrapper's own, this is written by runs.

    They follow one another on one stream.
    """
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Attend:
    flex_attention = importlib.import_module("torch.nn.attention.flex_attention")
    compiled = torch.compile(flex_attention.flex_attention, dynamic=False)
    mask = flex_attention.create_block_mask(
        lambda _sequence, _head, query, key: query >= key, None, None, q.shape[2], k.shape[2], device=q.device
    )
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=True)


def leave_out(name: str, error: Exception) -> None:
    """Print why a peer is not among those that are measured."""
    print(f"{name} is left out: {next(iter(str(error).splitlines()), type(error).__name__)}", flush=True)


def _those_that_run(makers: Mapping[str, Callable[[], Attend]]) -> dict[str, Attend]:
    """Return what is made and runs once."""
    peers: dict[str, Attend] = {}
    for name, make in makers.items():
        try:
            attend = make()
            attend()
        except Exception as error:  # each fails in its own way, and its compilers in theirs
            leave_out(name, error)
            continue
        peers[name] = attend
    return peers
