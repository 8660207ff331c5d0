"""PyTorch's own attention, and FlashInfer's where it is installed, over the same sequences: what ours is held against.

PyTorch's are given contiguous keys and values, which no server has: they look nothing up. A peer that refuses a shape
or a device is not among those that are returned.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Attend = Callable[[], object]

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def torch_peers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> dict[str, Attend]:
    """Return those for q `[S, Hq, T, D]` over k and v `[S, Hk, n, D]`, by name."""
    peers: dict[str, Attend] = {}
    for name, backend in BACKENDS.items() if q.is_cuda else ():

        def attend(backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)

        try:
            attend()
        except RuntimeError as error:  # "No available kernel"
            print(f"{name} is not for these shapes: {str(error).splitlines()[0]}")
            continue
        peers[name] = attend
    return peers


def flashinfer_decode(
    q: torch.Tensor, pool: torch.Tensor, layer: int, table: torch.Tensor, kv_len: int
) -> dict[str, Attend]:
    """Return FlashInfer's decode of q `[S, Hq, D]` over pool `[N, L, 2, Hk, B, D]`; empty where it is not installed.

    `table` `[S, M]` names the blocks of sequences that all have `kv_len` tokens.
    """
    if importlib.util.find_spec("flashinfer") is None:
        return {}
    flashinfer = importlib.import_module("flashinfer")
    num_sequences, num_blocks = table.shape
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True)
    starts = torch.arange(0, (num_sequences + 1) * num_blocks, num_blocks, dtype=torch.int32, device=q.device)
    last = torch.full(
        (num_sequences,), (kv_len - 1) % pool.shape[4] + 1, dtype=torch.int32, device=q.device
    )  # tokens of the last block
    wrapper.plan(
        starts, table.flatten().int(), last, q.shape[1], pool.shape[3], q.shape[2], pool.shape[4], q_data_type=q.dtype
    )
    pages = pool[:, layer]  # [N, 2, Hk, B, D]
    return {"flashinfer": lambda: wrapper.run(q, pages)}
