"""Two ranks, each a real process, say what one says in fp32, token for token, and fail together.

Random weights: this shows that the mechanism is exact, not that answers make sense. Ranks are those of a CPU, also
where each has a pool of its own, as on GPUs; what is a GPU's alone is in `test_on_a_gpu`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from engine_runs import Heard, assert_at_rest, engine, greedy, run_all, spec
from ranked_engines import FAILING, ranked
from safetensors.torch import load_file

from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec, branches
from pagewire.engine import weights
from pagewire.engine.config import EngineConfig
from pagewire.engine.llm import LLM
from pagewire.engine.model import checkpoint
from pagewire.engine.model.families import native_architecture
from pagewire.engine.model.shard import Shard
from pagewire.engine.model_folder import ModelFolder
from pagewire.engine.ranks import rank_group
from pagewire.engine.ranks.model_pass import ModelPass
from pagewire.engine.ranks.rank_lost import RankLost
from pagewire.engine.runner import DeviceLost
from pagewire.kernels.scaled_weight import plain

TinyModel = Callable[[str], Path]

SHARED, APART = "cpu", "cpu,cpu"  # one pool for all ranks, and one for each as where each has a GPU
BLOCK_BYTES = 16 * 768  # 3 layers x 2 heads x 16 dims x K and V x 4 bytes, 16 tokens
POISON = 255


def prompts() -> list[list[int]]:
    chance = random.Random(1)
    shared = [chance.randrange(250) for _ in range(37)]
    plain = [[chance.randrange(250) for _ in range(length)] for length in (1, 2, 16, 17, 33, 100)]
    return [*plain, *([*shared, *(chance.randrange(250) for _ in range(length))] for length in (1, 11, 40))]


def asked(max_tokens: int = 12, name: str = "") -> list[SequenceSpec]:
    """Half of them greedy, half of them drawn with a seed."""
    return [
        spec(
            f"{name}{i}",
            prompt,
            greedy(max_tokens)
            if i % 2
            else SamplingParams(max_tokens=max_tokens, temperature=0.9, top_p=0.9, seed=i, ignore_eos=True),
        )
        for i, prompt in enumerate(prompts())
    ]


@pytest.mark.parametrize(
    ("device", "order"), [(SHARED, "layer_outer"), (SHARED, "head_outer"), (APART, "auto")], ids=["lo", "ho", "apart"]
)
@pytest.mark.parametrize(
    "name", ["llama", "llama_odd_heads", "llama3_rope", "mistral", "qwen2", "qwen3", "qwen3_layer_types"]
)
def test_two_ranks_say_what_one_says(tiny: TinyModel, name: str, device: str, order: str) -> None:
    """In chunks, in batches that change, and again with what is cached."""
    settings: dict[str, Any] = {"chunk_size": 20, "max_num_batched_tokens": 64, "max_num_seqs": 5, "kv_order": order}
    one = engine(tiny(name), **settings)
    expected = [run_all(one.loop, asked(name=name)).tokens for name in ("first ", "again ")]
    with ranked(tiny(name), device=device, **settings) as two:
        for part in two.cache.parts:
            part.fill_(torch.nan)
        assert [run_all(two.loop, asked(name=name)).tokens for name in ("first ", "again ")] == expected
        assert two.loop.load().prompt_tokens_cached == one.loop.load().prompt_tokens_cached > 0
        assert_at_rest(two.loop)
        assert two.ready.fingerprint == one.ready.fingerprint


def test_four_ranks_have_a_head_each(tmp_path: Path) -> None:
    import tiny_model  # noqa: PLC0415

    folder = tiny_model.build(tmp_path / "wide", "llama_four_heads")
    expected = run_all(engine(folder).loop, asked()).tokens
    for num_ranks, device in ((2, SHARED), (4, SHARED), (4, "cpu,cpu,cpu,cpu")):
        with ranked(folder, num_ranks, device=device) as built:
            assert run_all(built.loop, asked()).tokens == expected


@pytest.mark.parametrize("device", [SHARED, APART])
@pytest.mark.parametrize("host_blocks", [0, 20])
def test_preemption_changes_no_token(tiny: TinyModel, host_blocks: int, device: str) -> None:
    """By computing again, and by way of host memory: rank 0 copies the blocks of all."""
    settings: dict[str, Any] = {
        "device": device,
        "kv_memory_bytes": 17 * BLOCK_BYTES, "max_model_len": 128, "host_kv_memory_bytes": host_blocks * BLOCK_BYTES,
        "preemption": "swap" if host_blocks else "recompute",
    }  # fmt: skip
    specs = [one for one in asked(60) if 2 <= len(one.tokens) <= 40][:4]
    expected = run_all(engine(tiny("llama"), max_model_len=128).loop, specs).tokens
    with ranked(tiny("llama"), **settings) as built:
        assert run_all(built.loop, specs).tokens == expected
        load = built.loop.load()
        assert load.preemptions > 0
        assert (load.preemptions_swapped > 0) == bool(host_blocks)
        assert_at_rest(built.loop)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=20, n=4, temperature=1.0, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=20, n=3, use_beam_search=True, beam_width=4, temperature=0.0),
    ],
    ids=["forks", "beams"],
)
@pytest.mark.parametrize("device", [SHARED, APART])
def test_what_forks_off_says_the_same(tiny: TinyModel, sampling: SamplingParams, device: str) -> None:
    """A tail block is copied for each: on write."""
    one = spec("a", prompts()[4], sampling, branches=branches(sampling.num_sequences))

    def said(loop: Any) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {}
        loop.add(Add(spec=one))
        while (done := loop.step()) is not None:
            for record in done.records:
                tokens.setdefault(record.index, []).extend(record.tokens)
        return tokens

    expected = said(engine(tiny("qwen2")).loop)
    assert len({tuple(tokens) for tokens in expected.values()}) > 1
    with ranked(tiny("qwen2"), device=device) as built:
        assert said(built.loop) == expected


@pytest.mark.parametrize("device", [SHARED, APART])
def test_quantised_kv_says_what_one_rank_says(tiny: TinyModel, device: str) -> None:
    expected = run_all(engine(tiny("qwen3"), kv_dtype="int8").loop, asked()).tokens
    with ranked(tiny("qwen3"), kv_dtype="int8", kv_order="head_outer", device=device) as built:
        assert run_all(built.loop, asked()).tokens == expected


@pytest.mark.parametrize("device", [SHARED, APART])
def test_the_tail_leaves_the_pod_sealed_over_all_heads(tiny: TinyModel, device: str) -> None:
    with ranked(tiny("llama"), role=Role.PREFILL, kv_order="head_outer", device=device) as built:
        for part in built.cache.parts:
            part.fill_(torch.nan)
        heard = run_all(built.loop, [spec("a", prompts()[4], greedy(4))])
        for part in built.cache.parts:
            blocks = part[list(heard.chunks[-1].block_ids)]  # [n, L, 2, Hk, B, D]
            assert not blocks.isnan().any()
            assert int(blocks[-1, :, :, :, 33 % 16 :].count_nonzero()) == 0
        built.loop.release("a")


def test_a_pool_in_parts_holds_what_one_pool_holds(tiny: TinyModel) -> None:
    """Byte for byte, where the same is computed: those of the parts, side by side, are the block's."""
    found = []
    for device in (SHARED, APART):
        with ranked(tiny("qwen3"), role=Role.PREFILL, kv_order="head_outer", device=device) as built:
            heard = run_all(built.loop, [spec("a", prompts()[4], greedy(4))])
            assert len(built.cache.parts) == len(device.split(","))
            found.append(torch.cat([part[list(heard.chunks[-1].block_ids)] for part in built.cache.parts], dim=3))
            built.loop.release("a")
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("device", [SHARED, APART])
def test_a_rehearsal_touches_the_pool_of_no_rank(tiny: TinyModel, device: str) -> None:
    with ranked(tiny("llama"), device=device) as built:
        for part in built.cache.parts:
            part.fill_(7.0)
        built.runner.rehearse(9)
        assert all(bool((part == 7.0).all()) for part in built.cache.parts)


def test_offline_use_has_ranks_too(tiny: TinyModel) -> None:
    settings: dict[str, Any] = {"dtype": "float32", "kv_memory_bytes": 4 << 20, "max_model_len": 256, "threads": 1}
    with LLM(tiny("llama"), **settings) as one:
        expected = [each.token_ids for each in one.generate(prompts(), greedy(8))]
    before = {child.pid for child in psutil.Process().children()}
    with LLM(tiny("llama"), tensor_parallel=2, **settings) as two:
        assert [each.token_ids for each in two.generate(prompts(), greedy(8))] == expected
        assert len({child.pid for child in psutil.Process().children()} - before) == 1
    assert {child.pid for child in psutil.Process().children()} == before


# ---------------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("after", [0, 3, 5])
def test_a_rank_that_fails_alone_fails_that_sequence_alone(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Rank 1 fails before its first sum, in the middle, and before its last; rank 0 does not."""
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    monkeypatch.setattr(rank_group, "FOLLOWER", (sys.executable, "-P", str(program), str(POISON), str(after)))
    expected = run_all(engine(tiny("llama")).loop, asked()).tokens
    with ranked(tiny("llama")) as built:
        heard = run_all(built.loop, [*asked(), spec("bad", [1, POISON, 2], greedy(4))])
        error = heard.ends["bad"].error
        assert error is not None
        assert error.cause == "poisoned"
        assert "rank 1: MemoryError: no room on this rank" in error.message
        assert heard.tokens == expected
        assert run_all(built.loop, asked(name="later ")).tokens == {f"later {i}": expected[i] for i in expected}
        assert_at_rest(built.loop)


@pytest.mark.parametrize("after", [0, 2])
def test_where_rank_0_fails_alone_the_others_do_not_wait(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    expected = run_all(engine(tiny("llama")).loop, asked()).tokens
    with ranked(tiny("llama")) as built:
        model = built.runner._model._model  # type: ignore[attr-defined]
        forward = model.forward

        def failing(batch: Any, pool: torch.Tensor, wrote: Any = None) -> torch.Tensor:
            if POISON not in batch.token_ids.tolist():
                return torch.as_tensor(forward(batch, pool, wrote))

            def fail(layer: int) -> None:
                if layer == after:
                    raise ValueError("rank 0 alone")

            return torch.as_tensor(forward(batch, pool, fail))

        monkeypatch.setattr(model, "forward", failing)
        heard = run_all(built.loop, [*asked(), spec("bad", [1, POISON, 2], greedy(4))])
        error = heard.ends["bad"].error
        assert error is not None
        assert (error.cause, "rank 0 alone" in error.message) == ("poisoned", True)
        assert heard.tokens == expected


def test_what_a_failed_pass_held_is_let_go_before_it_is_ended(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it failed for want of memory, zeros for what is left of its sums have to have some."""
    with ranked(tiny("llama")) as built:
        model, group = built.runner._model._model, built.ranks  # type: ignore[attr-defined]
        assert group is not None
        held: list[weakref.ref[torch.Tensor]] = []
        kept: list[bool] = []
        end = group.end

        def failing(_batch: Any, _pool: torch.Tensor, _wrote: Any = None) -> torch.Tensor:
            activations = torch.zeros(1000)
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("no room")

        def ending(num_rows: int) -> tuple[str, ...]:
            kept.extend(each() is not None for each in held)
            said: tuple[str, ...] = end(num_rows)
            return said

        monkeypatch.setattr(model, "forward", failing)
        monkeypatch.setattr(group, "end", ending)
        with pytest.raises(DeviceLost, match="no room"):  # not even for a token for nobody
            run_all(built.loop, [spec("a", [1, 2], greedy(2))])
        assert kept
        assert not any(kept)


def test_where_all_ranks_fail_that_sequence_fails_alone(tiny: TinyModel) -> None:
    """No embedding has a row for this token: who checks prompts did not."""
    expected = run_all(engine(tiny("llama")).loop, asked()).tokens
    with ranked(tiny("llama")) as built:
        limits = built.scheduler.limits
        object.__setattr__(limits, "vocab_size", 100_000)
        heard = run_all(built.loop, [*asked(), spec("bad", [1, 99_999, 2], greedy(4))])
        assert heard.ends["bad"].error is not None
        assert heard.ends["bad"].error.cause == "poisoned"
        assert heard.tokens == expected


def test_an_engine_that_lost_a_rank_computes_nothing_more(tiny: TinyModel) -> None:
    with ranked(tiny("llama")) as built:
        assert built.ranks is not None
        built.loop.add(Add(spec=asked()[0]))
        os.kill(built.ranks.pids[0], signal.SIGKILL)
        with pytest.raises(RankLost):
            Heard().hear(built.loop.step())  # type: ignore[arg-type]


def test_a_rank_that_stands_still_is_waited_for_as_long_as_a_step_may_take(tiny: TinyModel) -> None:
    with ranked(tiny("llama"), stall_s=1.0) as built:
        assert built.ranks is not None
        built.loop.add(Add(spec=asked()[0]))
        os.kill(built.ranks.pids[0], signal.SIGSTOP)
        with pytest.raises(RankLost):
            built.loop.step()


def test_a_rank_that_cannot_start_is_named(tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "refusing.py"
    program.write_text(
        "import sys\nimport pagewire.engine.ranks.follower as follower\n"
        "def refuse(*_): raise ValueError('no weights here')\n"
        "follower.Follower.__init__ = refuse\nfollower.main(sys.argv[1:])\n"
    )
    monkeypatch.setattr(rank_group, "FOLLOWER", (sys.executable, "-P", str(program)))
    with pytest.raises(ValueError, match="rank 1: no weights here"):
        engine(tiny("llama"), tensor_parallel=2)
    program.write_text("raise SystemExit(5)\n")
    with pytest.raises(RankLost, match="rank 1 has ended"):
        engine(tiny("llama"), tensor_parallel=2)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel must be positive, is 0"),
        ({"tensor_parallel": 2, "deterministic": True}, "tensor_parallel 2: deterministic"),
        ({"tensor_parallel": 2, "layer_groups": 3}, "tensor_parallel 2: layer_groups 3"),
        (
            {"tensor_parallel": 2, "device": "cuda", "kv_order": "layer_outer"},
            "tensor_parallel 2: kv_order layer_outer",
        ),
        ({"tensor_parallel": 2, "device": "cuda", "deterministic": True}, "tensor_parallel 2: deterministic"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EngineConfig(model="m", role=Role.COLOCATED, **changes)


@pytest.mark.parametrize(
    ("name", "num_ranks", "named"),
    [
        ("llama", 4, "tensor_parallel 4: num_kv_heads 2 is no multiple of it"),
        ("llama", 3, "tensor_parallel 3: num_q_heads 4 is no multiple of it"),
        ("gemma2", 2, "tensor_parallel 2: no shards for the general path"),
    ],
)
def test_models_that_do_not_divide_are_refused(tiny: TinyModel, name: str, num_ranks: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        engine(tiny(name), tensor_parallel=num_ranks)


def test_nothing_spills_where_several_ranks_compute(tiny: TinyModel) -> None:
    settings: dict[str, Any] = {
        "kv_memory_bytes": 8 * BLOCK_BYTES, "host_kv_memory_bytes": 40 * BLOCK_BYTES, "chunk_size": 32,
    }  # fmt: skip
    engine(tiny("llama"), **settings)
    with pytest.raises(ValueError, match="nothing spills to host memory where several ranks compute"):
        engine(tiny("llama"), tensor_parallel=2, **settings)


# ----------------------------------------------------------------------------------------------- weights and messages


@pytest.mark.parametrize("name", ["llama", "llama3_rope", "qwen2", "qwen3"])
def test_the_parts_of_all_ranks_are_the_whole(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each stored number is some rank's, and what is divided is read once."""
    folder = ModelFolder.open(tiny(name))
    architecture = native_architecture(folder.hf_config)
    stored = load_file(tiny(name) / "model.safetensors")
    whole_reads: list[str] = []
    fill = weights._fill

    def noted(tensor: str, place: torch.Tensor, file: Any, part: weights.Part | None) -> None:
        if part is None:
            whole_reads.append(tensor)
        fill(tensor, place, file, part)

    monkeypatch.setattr(weights, "_fill", noted)
    put_together: dict[str, list[torch.Tensor]] = {}
    axes: dict[str, int] = {}
    for rank in range(2):
        shard = Shard(rank=rank, num_ranks=2)
        config = architecture.config.part(2)
        _, places, parts = checkpoint.allocate(config, torch.float32, torch.device("cpu"), shard)
        ignored = [".*lm_head.*", r".*o_proj\.bias", r".*down_proj\.bias"] if rank or config.tied_embeddings else []
        weights.load(folder.weight_files(), places, ignored, parts)
        for tensor, place in places.items():
            put_together.setdefault(tensor, []).append(plain(place))
            if tensor in parts:
                axes[tensor] = parts[tensor].axis
    for tensor, found in put_together.items():
        if tensor in axes:
            assert torch.equal(torch.cat(found, axes[tensor]), stored[tensor]), tensor
        else:
            assert all(torch.equal(each, stored[tensor]) for each in found), tensor
    assert set(put_together) == set(stored) - ({"lm_head.weight"} if architecture.config.tied_embeddings else set())
    divided = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj.weight", "down_proj.weight")
    assert not [tensor for tensor in whole_reads if any(part in tensor for part in divided)]
    once = [tensor for tensor in put_together if tensor.endswith(("o_proj.bias", "down_proj.bias", "lm_head.weight"))]
    assert all(len(put_together[tensor]) == 1 for tensor in once)


def test_a_pass_survives_the_line_and_nothing_else_does() -> None:
    sent = ModelPass(
        query_lens=(2, 1),
        kv_lens=(5, 33),
        adapters=(0, 2),
        block_table=((3, 3), (-1, 4)),
        tokens=(7, 8, 9),
        on_stage=True,
    )
    data = sent.to_bytes()
    assert ModelPass.from_bytes(data) == sent
    grants = sent.step().grants
    assert [(grant.tokens, grant.start, tuple(grant.block_ids)) for grant in grants] == [
        ((7, 8), 3, (3, 3)), ((9,), 32, (-1, 4)),
    ]  # fmt: skip
    broken = [
        *(data[:size] for size in range(len(data))),
        data + b"\0",
        ModelPass(
            query_lens=(1, 1), kv_lens=(5, 33), adapters=(0, 0), block_table=((3,), (4,)), tokens=(7, 8, 9)
        ).to_bytes(),
        ModelPass(query_lens=(3,), kv_lens=(2,), adapters=(0,), block_table=((3,),), tokens=(7, 8, 9)).to_bytes(),
        ModelPass(query_lens=(), kv_lens=(), adapters=(), block_table=(), tokens=()).to_bytes(),
    ]
    for each in broken:
        with pytest.raises(RankLost):
            ModelPass.from_bytes(each)
