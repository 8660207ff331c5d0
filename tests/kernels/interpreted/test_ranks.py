"""Two ranks over Triton's ops, each a process with a pool of its own heads, as where each has a GPU.

Tokens are those of one rank over torch's ops. Cannot show what only GPUs do: that memory of one process is mapped in
another, that NCCL adds up, that nothing runs on when a pass is over.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tiny_model
import torch
from engine_runs import engine, greedy, run_all, spec
from ranked_engines import ranked

from pagewire.engine import packed_batch
from pagewire.engine.model_runner import ModelRunner
from pagewire.engine.ranks import rank_group
from pagewire.kernels.gpu import small_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

TILE = small_linear.Tile(rows=128, lanes=32, depth=1)  # larger than a processor would hold, for the interpreter's sake
# A rank's program that computes as one on a GPU does; it inherits TRITON_INTERPRET.
ON_TRITON = f"""
import sys
from unittest import mock
import torch
sys.path.append({str(Path(__file__).parents[2] / "support")!r})
from interpreted_calls import quick_calls
import pagewire.engine.ranks.follower as follower
from pagewire.engine.packed_batch import pack
from pagewire.kernels.gpu import small_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.triton_backend import TritonBackend

follower.backend_for = lambda device: TritonBackend(device, Processor((9, 0), 2))
follower.batch_maker = lambda device: pack
tile = small_linear.Tile(rows=128, lanes=32, depth=1)
with quick_calls(), mock.patch.object(small_linear.Tile, "choose", return_value=tile):
    follower.main(sys.argv[1:])
"""


@pytest.mark.parametrize("name", ["qwen3", "qwen2_sliding"])
def test_two_ranks_say_what_torch_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, in batches, preempted by way of host memory, and again with what is cached."""
    folder = tiny_model.build(tmp_path / name, name)
    program = tmp_path / "on_triton.py"
    program.write_text(ON_TRITON)
    monkeypatch.setattr(rank_group, "FOLLOWER", (sys.executable, "-P", str(program)))
    monkeypatch.setattr(small_linear.Tile, "choose", mock.Mock(return_value=TILE))
    settings: dict[str, Any] = {"chunk_size": 16, "max_model_len": 64, "max_num_seqs": 3}
    asked = [
        spec(str(i), [(31 * i + at) % 250 for at in range(length)], greedy(6))
        for i, length in enumerate((30, 29, 1, 40))
    ]
    again = [spec(f"again {i}", [(31 * i + at) % 250 for at in range(33)], greedy(4)) for i in (1, 3)]
    torchs = engine(folder, backend=TorchBackend(), **settings)
    expected = {**run_all(torchs.loop, asked).tokens, **run_all(torchs.loop, again).tokens}
    backend = TritonBackend(torch.device("cpu"), Processor((9, 0), 2))
    with ranked(
        folder, backend=backend, device="cpu,cpu", host_kv_memory_bytes=1 << 20, preemption="swap",
        kv_memory_bytes=5 * torchs.ready.layout.block_bytes, **settings,
    ) as built:  # fmt: skip
        assert isinstance(built.runner, ModelRunner)
        built.runner._batch_of = packed_batch.pack
        for part in built.cache.parts:
            part.fill_(torch.nan)
        assert {**run_all(built.loop, asked).tokens, **run_all(built.loop, again).tokens} == expected
        load = built.loop.load()
        assert load.preemptions_swapped > 0
        assert load.prompt_tokens_cached > 0
