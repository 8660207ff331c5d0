"""Whole engines as a GPU runs them, kernels, streams and graphs, on a device that is none; see `paper_gpu`.

What is said is what torch's ops say on a CPU. Beyond the other tests of graphs it shows that nothing waits within a
capture, that all lies on the device that is computed on, and that the host waits for a step's tokens and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bare_adapter
import engine_runs
import pytest
import tiny_model
from engine_runs import greedy, run_all, spec
from guesses import Guesses
from paper_gpu.device import Devices, is_possible, paper_gpu

from pagewire.core.sampling import SamplingParams, TokenBias
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import capture
from pagewire.engine.assembly import Engine
from pagewire.engine.block_mover import BlockMover
from pagewire.engine.moves import Move, Way
from pagewire.kernels.torch_backend import TorchBackend

pytestmark = pytest.mark.skipif(not is_possible(), reason="no compiler, or there is a GPU")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Devices]:
    monkeypatch.setattr(capture, "WARM_UPS", 0)  # nothing is compiled
    with paper_gpu() as devices:
        yield devices
    # A step that was launched in vain is computed again, and its tokens are right.
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def engine(folder: Path, device: str, **settings: Any) -> Engine:
    most = {"max_model_len": 64, "max_num_seqs": 4, "chunk_size": 16, "max_num_batched_tokens": 32}
    backend = TorchBackend() if device == "cpu" else None
    return engine_runs.engine(folder, device=device, backend=backend, **{**most, **settings})


def asked(*ways: SamplingParams, adapters: tuple[str, ...] = ("",)) -> list[SequenceSpec]:
    return [
        spec(str(i), [(31 * i + 7 * at * at) % 250 for at in range(length)], way, adapter=adapters[i % len(adapters)])
        for i, (way, length) in enumerate(zip(ways, (5, 33, 16, 1), strict=True))
    ]


def test_steps_are_replayed_and_begun_ahead(tmp_path: Path, gpu: Devices) -> None:
    requests = asked(
        greedy(4, presence_penalty=0.5), greedy(6, temperature=0.8, seed=5, logit_bias=(TokenBias(token=9, bias=2.0),)),
        greedy(7, temperature=1.1, top_k=20, seed=6), greedy(5, logprobs=2),
    )  # fmt: skip
    folder = tiny_model.build(tmp_path, "qwen3")
    expected = run_all(engine(folder, "cpu").loop, requests).tokens
    loop = engine(folder, "cuda").loop
    before = gpu.order.num_waits
    heard = run_all(loop, requests)
    assert heard.tokens == expected
    assert loop.load().graph_recaptures == 0
    assert gpu.order.num_waits - before <= heard.steps + 5  # log probabilities are read besides, of five tokens


def test_steps_that_are_computed_one_by_one(tmp_path: Path, gpu: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """With adapters and drafts, and cached blocks that go to the host and come back."""
    requests = asked(greedy(3), greedy(6), greedy(5), greedy(4), adapters=("", "3"))
    folder = tiny_model.build(tmp_path / "model", "llama")
    settings: dict[str, Any] = {
        "adapters": [f"3={bare_adapter.write(folder, tmp_path / '3', 3)}"], "kv_memory_bytes": 5 * 12 << 10,
        "host_kv_memory_bytes": 1 << 20,
    }  # fmt: skip
    expected = run_all(engine(folder, "cpu", **settings).loop, requests).tokens
    known = {**expected, "another": [7], "1 again": expected["1"]}
    ways, move = set[Way](), BlockMover.move

    def noted(mover: BlockMover, moves: Sequence[Move]) -> None:
        ways.update(each.way for each in moves)
        move(mover, moves)

    monkeypatch.setattr(BlockMover, "move", noted)
    built = engine(folder, "cuda", **settings)
    built.scheduler.speculation = Guesses(3, lambda sequence, place: known[sequence.request_id][place], wrong=7)
    assert run_all(built.loop, requests).tokens == expected
    run_all(built.loop, [spec("another", range(50), greedy(1))])
    again = run_all(built.loop, [replace(requests[1], request_id="1 again")])
    assert again.tokens["1 again"] == expected["1"]
    assert again.ends["1 again"].cached_tokens == 32
    assert ways == {Way.OUT, Way.IN}
