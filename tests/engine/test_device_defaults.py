"""What suits a device where nothing is asked for: chunks, budgets, threads, and which steps are captured."""

from __future__ import annotations

import itertools

import pytest
import torch

from pagewire.core import cores
from pagewire.core.messages import Role
from pagewire.engine.assembly import resolve_dtype
from pagewire.engine.config import EngineConfig
from pagewire.engine.graph_limits import TOKENS, GraphLimits
from pagewire.engine.threads import set_threads
from pagewire.kernels import native_ops
from pagewire.serving.pod_config import PodConfig


def config(**settings: object) -> EngineConfig:
    return EngineConfig(model="m", role=Role.COLOCATED, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "chunk", "pods_chunk", "budget"),
    [("cpu", 512, 256, 1024), ("cuda", 2048, 2048, 4096), ("cuda:3", 2048, 2048, 4096)],
)
def test_chunks_and_budgets_are_what_suits_the_device(device: str, chunk: int, pods_chunk: int, budget: int) -> None:
    alone = config(device=device)
    assert (alone.chunk_size, alone.max_num_batched_tokens) == (chunk, budget)
    assert EngineConfig.from_json(alone.to_json()) == alone
    pods = EngineConfig.of(PodConfig(role=Role.COLOCATED, model="m", device=device, cluster_secret="s"))
    assert (pods.chunk_size, pods.max_num_batched_tokens) == (pods_chunk, budget)


@pytest.mark.parametrize(
    ("has_instruction", "has_ops", "computed_in"),
    [(True, False, "bfloat16"), (False, True, "bfloat16"), (False, False, "float32")],
)
def test_bfloat16_is_computed_in_where_it_is_multiplied_well(
    monkeypatch: pytest.MonkeyPatch, has_instruction: bool, has_ops: bool, computed_in: str
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instruction)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(native_ops, "load", lambda: object() if has_ops else None)
    assert (resolve_dtype("auto"), resolve_dtype("float32")) == (computed_in, "float32")


def test_what_is_asked_for_stays() -> None:
    asked = {"chunk_size": 96, "max_num_batched_tokens": 300, "device": "cuda"}
    for made in (
        config(**asked),
        EngineConfig.of(PodConfig(role=Role.COLOCATED, model="m", cluster_secret="s", **asked)),  # type: ignore[arg-type]
    ):
        assert (made.chunk_size, made.max_num_batched_tokens) == (96, 300)


@pytest.mark.parametrize("name", ["chunk_size", "max_num_batched_tokens"])
def test_less_than_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must"):
        config(**{name: -1})
    with pytest.raises(ValueError, match=f"{name} must be 0 or more"):
        PodConfig(role=Role.COLOCATED, model="m", cluster_secret="s", **{name: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "num_ranks", "device", "threads"),
    [(0, 1, "cpu", 6), (0, 2, "cpu", 3), (5, 1, "cpu", 5), (0, 1, "cuda", 1), (0, 1, "cuda:1", 1), (4, 1, "cuda", 4)],
)
def test_threads(asked: int, num_ranks: int, device: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", said.append)
    monkeypatch.setattr(cores, "usable", lambda: 6)
    set_threads(asked, num_ranks, device)
    assert said == [threads]


def rows_of(**limits: int) -> dict[int, list[int]]:
    """Return the rows of the graphs of prompts, by how many sequences they hold."""
    made = GraphLimits(**{"max_num_seqs": 256, "max_model_len": 8192, "block_size": 16, "vocab_size": 9, **limits})
    found: dict[int, list[int]] = {}
    for bucket in made.mixed():
        found.setdefault(bucket.num_sequences, []).append(bucket.num_rows)
    return found


@pytest.mark.parametrize(
    ("longest_step", "last"), [(4096, 4096), (9000, 4096), (2840, 3072), (900, 1024), (300, 320), (257, 320)]
)
def test_steps_are_captured_up_to_the_first_that_holds_all(longest_step: int, last: int) -> None:
    rows = rows_of(longest_step=longest_step)
    assert {size: (sizes[0], sizes[-1]) for size, sizes in rows.items()} == {
        1: (16, last), 16: (32, last), 64: (64, last), 256: (256, last)
    }  # fmt: skip
    for sizes in rows.values():
        assert sizes == [size for size in TOKENS if sizes[0] <= size <= last]


def test_nothing_is_captured_that_no_step_needs() -> None:
    """A sequence has at most a chunk of a step, and no more than it may be long."""
    expected = {1: 512, 16: 4096, 64: 4096, 256: 4096}
    for limits in ({"longest_chunk": 512}, {"longest_chunk": 2048, "max_model_len": 500}, {"max_model_len": 512}):
        assert {size: sizes[-1] for size, sizes in rows_of(longest_step=4096, **limits).items()} == expected
    # Of many sequences there is one graph even where steps are short: it has a row for each.
    assert {size: sizes[-1] for size, sizes in rows_of(longest_step=17).items()} == {1: 32, 16: 32, 64: 64, 256: 256}


@pytest.mark.parametrize("most", [1, 2, 16, 17, 100])
def test_as_many_sequences_as_there_may_be_are_captured_with_chunks(most: int) -> None:
    limits = GraphLimits(max_num_seqs=most, max_model_len=4096, block_size=16, vocab_size=9, longest_step=2048)
    assert {bucket.num_sequences for bucket in limits.mixed()} == {*(size for size in (1, 16, 64) if size < most), most}


def test_nothing_but_decodes_is_captured_where_no_step_may_be() -> None:
    assert GraphLimits(max_num_seqs=4, max_model_len=4096, block_size=16, vocab_size=9).mixed() == ()


def test_rows_of_nobody_are_at_most_a_fifth_of_a_long_step() -> None:
    for shorter, longer in itertools.pairwise(size for size in TOKENS if size >= 512):
        assert longer - shorter - 1 < longer / 5
