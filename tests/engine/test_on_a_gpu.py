"""Engines on a CUDA device: tokens are transformers', and a front sees its engine's pool. For machines that have one.

In fp32, where sums of another order move no token of these models; what bfloat16 does is for the kernels' own suites.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare_adapter
import pytest
import torch
from engine_runs import Ears, engine, greedy, run_all, spec
from guesses import Guesses
from ranked_engines import ranked
from reference import Reference, generate

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import branches
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.kvtransfer.transports.device_pool import DevicePool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

TinyModel = Callable[[str], Path]

NUM_TOKENS = 12
PROMPTS = [[(7 * i + shift) % 256 for i in range(length)] for shift, length in enumerate((3, 16, 17, 50, 130))]


def config(model: Path, role: Role, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "dtype": "float32", "chunk_size": 20, "kv_memory_bytes": 4 << 20, "max_model_len": 256, "device": "cuda",
    }  # fmt: skip
    return EngineConfig(model=str(model), role=role, **{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
@pytest.mark.parametrize("kv_order", ["layer_outer", "head_outer"])
def test_tokens_are_those_of_transformers(family: str, kv_order: str, tiny: TinyModel) -> None:
    loop = engine(tiny(family), device="cuda", chunk_size=20, kv_order=kv_order).loop
    heard = run_all(loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)])
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny(family), PROMPTS, NUM_TOKENS)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_codes_say_what_they_say_on_a_cpu(family: str, tiny: TinyModel) -> None:
    found = []
    for device in ("cuda", "cpu"):
        loop = engine(tiny(family), device=device, chunk_size=20, weight_dtype="fp8").loop
        heard = run_all(loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)])
        found.append([heard.tokens[str(i)] for i in range(len(PROMPTS))])
    assert found[0] == found[1]


@pytest.mark.parametrize("weight_dtype", ["auto", "fp8"])
def test_adapters_say_what_they_say_on_a_cpu(weight_dtype: str, tiny: TinyModel, tmp_path: Path) -> None:
    """Beside requests without, whose steps are replayed from graphs where they are alone."""
    named = [f"{rank}={bare_adapter.write(tiny('llama'), tmp_path / str(rank), rank)}" for rank in (3, 16)]
    asked = [
        spec(f"{name} {i}", prompt, greedy(NUM_TOKENS + i), adapter=name)
        for i, prompt in enumerate(PROMPTS)
        for name in ("", "3", "16")
    ]
    found = []
    for device in ("cuda", "cpu"):
        loop = engine(tiny("llama"), device=device, chunk_size=20, weight_dtype=weight_dtype, adapters=named).loop
        found.append(run_all(loop, asked).tokens)
    assert found[0] == found[1]


def test_drafts_change_no_token(tiny: TinyModel) -> None:
    """Right ones and wrong ones; their steps are replayed from graphs of mixtures."""
    asked = [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)]
    right = run_all(engine(tiny("llama"), device="cuda").loop, asked).tokens
    built = engine(tiny("llama"), device="cuda")
    speculation = Guesses(3, lambda sequence, place: right[sequence.request_id][place], wrong=7)
    built.scheduler.speculation = speculation
    assert run_all(built.loop, asked).tokens == right
    assert 0 < speculation.num_accepted < speculation.num_drafted
    assert built.loop.load().graph_recaptures == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_sequences_say_the_same(preemption: str, tiny: TinyModel) -> None:
    settings: dict[str, Any] = {"preemption": preemption, "host_kv_memory_bytes": 1 << 20, "kv_memory_bytes": 220 << 10}
    one = engine(tiny("llama"), device="cuda", **settings)
    heard = run_all(one.loop, [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)])
    assert one.loop.load().preemptions > 0
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny("llama"), PROMPTS, 60)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_computes(dtype: str, tiny: TinyModel) -> None:
    heard = run_all(engine(tiny("llama"), device="cuda", dtype=dtype).loop, [spec("a", PROMPTS[3], greedy(NUM_TOKENS))])
    assert len(heard.tokens["a"]) == NUM_TOKENS


def test_too_large_a_pool_is_a_named_error(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="device cuda: CUDA out of memory"):
        engine(tiny("llama"), device="cuda", kv_memory_bytes=1 << 44)


# NCCL wants a GPU for each rank: where two share one, they add up in memory of the host, and all else is as it is.
TWO_RANKS: dict[str, Any] = {"tensor_parallel": 2, "device": "cuda:0,cuda:0"}
TWO_GPUS = pytest.param(
    {"tensor_parallel": 2, "device": "cuda"},
    marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a CUDA device for each of two ranks"),
)


@pytest.mark.parametrize("ranks", [TWO_RANKS, TWO_GPUS])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_two_ranks_say_what_transformers_says(family: str, ranks: dict[str, Any], tiny: TinyModel) -> None:
    """Again with what is cached, too."""
    expected = generate(tiny(family), PROMPTS, NUM_TOKENS)
    with ranked(tiny(family), chunk_size=20, **ranks) as built:
        assert len(built.cache.parts) == 2
        for name in ("first", "again"):
            heard = run_all(
                built.loop, [spec(f"{name} {i}", prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)]
            )
            assert [heard.tokens[f"{name} {i}"] for i in range(len(PROMPTS))] == expected


@pytest.mark.parametrize("ranks", [TWO_RANKS, TWO_GPUS])
def test_two_ranks_in_bfloat16_choose_what_transformers_does_unless_it_is_close(
    ranks: dict[str, Any], tiny: TinyModel
) -> None:
    with ranked(tiny("llama"), dtype="bfloat16", chunk_size=20, **ranks) as built:
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(1)) for i, prompt in enumerate(PROMPTS)])
    answers = Reference(tiny("llama"), torch.bfloat16).greedy(PROMPTS, 1)
    missed = {i: answer for i, answer in enumerate(answers) if heard.tokens[str(i)] != list(answer.tokens)}
    assert all(heard.tokens[str(i)] == list(answer.runners_up) for i, answer in missed.items())
    assert all(answer.margins[0] < 0.15 for answer in missed.values()), missed


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_sequences_of_two_ranks_say_the_same(preemption: str, tiny: TinyModel) -> None:
    settings: dict[str, Any] = {"preemption": preemption, "host_kv_memory_bytes": 1 << 20, "kv_memory_bytes": 220 << 10}
    with ranked(tiny("llama"), **TWO_RANKS, **settings) as built:
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)])
        assert built.loop.load().preemptions > 0
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny("llama"), PROMPTS, 60)


def test_forks_of_two_ranks_say_what_those_of_one_say(tiny: TinyModel) -> None:
    """A tail block is copied for each, in the parts of both."""
    sampling = SamplingParams(max_tokens=20, n=4, temperature=1.0, seed=3, ignore_eos=True)
    one = spec("a", PROMPTS[3], sampling, branches=branches(4))
    found: list[dict[int, list[int]]] = []
    with ranked(tiny("llama"), **TWO_RANKS) as built:
        for loop in (built.loop, engine(tiny("llama"), device="cuda").loop):
            tokens: dict[int, list[int]] = {}
            loop.add(Add(spec=one))
            while (done := loop.step()) is not None:
                for record in done.records:
                    tokens.setdefault(record.index, []).extend(record.tokens)
            found.append(tokens)
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0].values()}) > 1


@pytest.mark.parametrize(
    ("p", "d"),
    [({}, {}), (TWO_RANKS, {"kv_order": "head_outer"}), ({"kv_order": "head_outer"}, TWO_RANKS)],
    ids=["one to one", "two to one", "one to two"],
)
async def test_a_prompt_prefilled_in_one_process_is_decoded_in_another(
    p: dict[str, Any], d: dict[str, Any], tiny: TinyModel
) -> None:
    prefill = await EngineClient.start(config(tiny("llama"), Role.PREFILL, **p))
    decode = await EngineClient.start(config(tiny("llama"), Role.DECODE, **d))
    try:
        assert isinstance(prefill.pool, DevicePool)
        assert len(prefill.pool.parts) == p.get("tensor_parallel", 1)
        assert [uuid.startswith("GPU-") for uuid in prefill.ready.devices] == [True]
        assert dataclasses.replace(prefill.ready, pool_exports=()) == dataclasses.replace(decode.ready, pool_exports=())
        from_prefill, from_decode = Ears(prefill), Ears(decode)
        prompt = PROMPTS[3]
        one = spec("a", prompt, greedy(NUM_TOKENS))
        assert (await decode.reserve(Reserve(spec=one))).error is None
        prefill.add(Add(spec=one))
        heard = await from_prefill.until(lambda heard: any(chunk.is_last for chunk in heard.chunks))
        for chunk in heard.chunks:
            bound = await decode.bind(Bind(request_id="a", num_blocks=chunk.first_block + len(chunk.block_ids)))
            for source, target in zip(chunk.block_ids, bound.block_ids[chunk.first_block :], strict=True):
                decode.pool.write(target, prefill.pool.read(source))
        first = tuple(heard.tokens["a"])
        prefill.release("a")
        from_decode.heard.tokens["a"] = list(first)
        decode.join(Join(request_id="a", num_computed=len(prompt), output=first))
        done = await from_decode.until(lambda heard: "a" in heard.ends)
        assert done.tokens["a"] == generate(tiny("llama"), [prompt], NUM_TOKENS)[0]
    finally:
        await prefill.close()
        await decode.close()
    assert (prefill.exit_code, decode.exit_code) == (0, 0)


async def test_a_pool_that_cannot_be_mapped_is_a_named_error(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(EngineFailed, match=r"cuIpcGetMemHandle|expandable_segments"):
        await EngineClient.start(config(tiny("llama"), Role.DECODE))
