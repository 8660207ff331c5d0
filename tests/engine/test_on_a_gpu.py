"""Engines on a CUDA device: tokens are transformers', or a CPU's, whatever is asked; a front sees its engine's pool.

In fp32, where sums of another order move no token of these models; what bfloat16 does is for the kernels' own suites.
Where there is no device, engines of one process have one on paper: that they compute on it, and wait where they must.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bare_adapter
import engine_runs
import pytest
import torch
from any_gpu import IS_REAL, engine
from any_gpu import any_gpu as any_gpu
from any_gpu import processes as processes
from engine_runs import Ears, greedy, run_all, spec
from guesses import Guesses
from ranked_engines import ranked
from reference import Reference, generate

from pagewire.core.engine_messages import Add, Bind, Join, Reserve
from pagewire.core.errors import EngineFailed
from pagewire.core.messages import Role
from pagewire.core.sampling import Grammar, GrammarKind, SamplingParams, TokenBias, TokenSequence
from pagewire.core.sequence_spec import branches
from pagewire.engine.assembly import Engine
from pagewire.engine.client import EngineClient
from pagewire.engine.config import EngineConfig
from pagewire.kvtransfer.transports.device_pool import DevicePool

TinyModel = Callable[[str], Path]

NUM_TOKENS = 12
pytestmark = [pytest.mark.gpu] if IS_REAL else []
in_processes = pytest.mark.usefixtures("processes")
on_any = pytest.mark.usefixtures("any_gpu")
on_a_real_one = pytest.mark.skipif(not IS_REAL, reason="no CUDA device")

PROMPTS = [[(7 * i + shift) % 256 for i in range(length)] for shift, length in enumerate((3, 16, 17, 50, 130))]


def config(model: Path, role: Role, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "dtype": "float32", "chunk_size": 20, "kv_memory_bytes": 4 << 20, "max_model_len": 256, "device": "cuda",
    }  # fmt: skip
    return EngineConfig(model=str(model), role=role, **{**settings, **changes})  # type: ignore[arg-type]


def on_a_cpu(model: Path, **settings: Any) -> Engine:
    return engine_runs.engine(model, **settings)


def branches_of(built: Engine, sampling: SamplingParams) -> dict[int, list[int]]:
    """Return the tokens of each answer to one prompt, by index."""
    tokens: dict[int, list[int]] = {}
    built.loop.add(Add(spec=spec("a", PROMPTS[3], sampling, branches=branches(sampling.n))))
    for done in iter(built.loop.step, None):
        assert not [end.error for end in done.ends if end.error]
        for record in done.records:
            tokens.setdefault(record.index, []).extend(record.tokens)
    return tokens


FAMILIES = [
    "llama", "llama_odd_heads", "mistral", "qwen2", "qwen3", "gemma2", "phi3", "gpt_oss", "mixtral", "deepseek_v3",
]  # fmt: skip
ORDERED = [(family, "layer_outer") for family in FAMILIES] + [(family, "head_outer") for family in ("qwen3", "gemma2")]


@on_any
@pytest.mark.parametrize(("family", "kv_order"), ORDERED)
def test_tokens_are_those_of_transformers(family: str, kv_order: str, tiny: TinyModel) -> None:
    loop = engine(tiny(family), chunk_size=20, kv_order=kv_order).loop
    heard = run_all(loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)])
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny(family), PROMPTS, NUM_TOKENS)


@on_any
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_codes_say_what_they_say_on_a_cpu(family: str, tiny: TinyModel) -> None:
    found = []
    for made in (engine, on_a_cpu):
        loop = made(tiny(family), chunk_size=20, weight_dtype="fp8").loop
        heard = run_all(loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)])
        found.append([heard.tokens[str(i)] for i in range(len(PROMPTS))])
    assert found[0] == found[1]


@on_any
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
    for made in (engine, on_a_cpu):
        loop = made(tiny("llama"), chunk_size=20, weight_dtype=weight_dtype, adapters=named).loop
        found.append(run_all(loop, asked).tokens)
    assert found[0] == found[1]


@on_any
def test_drafts_change_no_token(tiny: TinyModel) -> None:
    """Right ones and wrong ones; their steps are replayed from graphs of mixtures."""
    asked = [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)]
    right = run_all(engine(tiny("llama")).loop, asked).tokens
    built = engine(tiny("llama"))
    speculation = Guesses(3, lambda sequence, place: right[sequence.request_id][place], wrong=7)
    built.scheduler.speculation = speculation
    assert run_all(built.loop, asked).tokens == right
    assert 0 < speculation.num_accepted < speculation.num_drafted
    assert built.loop.load().graph_recaptures == 0


WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 1.5, "logprobs": 3},
    {"temperature": 0.0, "presence_penalty": 0.9, "frequency_penalty": 0.6, "prompt_logprobs": 2},
    {
        "temperature": 0.0,
        "bad_words": (TokenSequence(tokens=(7, 8)),),
        "allowed_token_ids": (5, 7, 8, 9),
        "logprobs": 0,
    },
    {"temperature": 0.0, "min_tokens": 9, "stop_token_ids": tuple(range(0, 256, 2)), "logprobs": 2},
    {"temperature": 0.0, "logit_bias": (TokenBias(token=40, bias=3.0),)},
    {"temperature": 0.0, "grammar": Grammar(kind=GrammarKind.REGEX, text="[a-d]{40}"), "ignore_eos": False},
    {"temperature": 1.3, "top_k": 30, "seed": 1},
    {"temperature": 1.3, "top_p": 0.9, "seed": 2},
    {"temperature": 1.3, "min_p": 0.05, "seed": 3},
    {"temperature": 1.3, "typical_p": 0.6, "seed": 4, "presence_penalty": 0.5},
]


@on_any
@pytest.mark.parametrize("settings", [{}, {"kv_dtype": "int8"}, {"kv_dtype": "fp8", "block_size": 32}], ids=str)
def test_whatever_is_asked_for_is_answered_as_on_a_cpu(settings: dict[str, Any], tiny: TinyModel) -> None:
    """All in one batch: what is edited, drawn and reported; what rounding is to a code shows in log probabilities."""
    asked = [
        spec(str(i), PROMPTS[i % 5], SamplingParams(**{"max_tokens": NUM_TOKENS, "ignore_eos": True, **way}))
        for i, way in enumerate(WAYS)
    ]
    found = []
    for made in (engine, on_a_cpu):
        loop = made(tiny("llama"), chunk_size=20, **settings).loop
        records: dict[str, list[tuple[int, ...]]] = {}
        reports: dict[str, list[float]] = {}
        for one in asked:
            loop.add(Add(spec=one))
        for done in iter(loop.step, None):
            assert not [end.error for end in done.ends if end.error]
            for record in done.records:
                records.setdefault(record.request_id, []).append(record.tokens)
                for told in (*record.logprobs, *record.prompt_logprobs):
                    reports.setdefault(record.request_id, []).extend((told.logprob, *told.top_logprobs))
        found.append((records, reports))
    assert found[0][0] == found[1][0]
    assert found[0][1].keys() == found[1][1].keys() == {"0", "1", "2", "3"}
    for name, numbers in found[0][1].items():
        assert numbers == pytest.approx(found[1][1][name], abs=1e-2 if "kv_dtype" in settings else 1e-4)


@on_any
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=20, n=4, temperature=1.0, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=20, n=3, use_beam_search=True, temperature=0.0, ignore_eos=True),
    ],
    ids=["forks", "beams"],
)
def test_several_answers_are_those_of_a_cpu(sampling: SamplingParams, tiny: TinyModel) -> None:
    """Their common tail block is copied on the device."""
    found = [branches_of(made(tiny("llama")), sampling) for made in (engine, on_a_cpu)]
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0].values()}) > 1


@on_any
def test_a_sequence_larger_than_the_pool_is_streamed_from_the_host(tiny: TinyModel) -> None:
    prompt = [(7 * i * i + 3) % 256 for i in range(400)]
    block_bytes = 3 * 2 * 2 * 16 * 16 * 4  # L, K and V, Hk, B, D, fp32
    loop = engine(
        tiny("llama"), kv_memory_bytes=12 * block_bytes, host_kv_memory_bytes=40 * block_bytes, chunk_size=48,
        max_num_batched_tokens=96, max_model_len=480,
    ).loop  # fmt: skip
    heard = run_all(loop, [spec("a", prompt, greedy(NUM_TOKENS)), spec("b", PROMPTS[3], greedy(NUM_TOKENS))])
    expected = generate(tiny("llama"), [prompt, PROMPTS[3]], NUM_TOKENS)
    assert [heard.tokens["a"], heard.tokens["b"]] == expected


@on_any
def test_a_cache_outlives_its_engine(tiny: TinyModel, tmp_path: Path) -> None:
    expected = generate(tiny("llama"), PROMPTS, NUM_TOKENS)
    for cached in (False, True):
        built = engine(tiny("llama"), host_kv_dir=str(tmp_path), host_kv_memory_bytes=1 << 20, chunk_size=20)
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(PROMPTS)])
        assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == expected
        found = [heard.ends[str(i)].cached_tokens for i in range(len(PROMPTS))]
        assert found == [(len(prompt) - 1) // 16 * 16 if cached else 0 for prompt in PROMPTS]
        built.keep_cache()
        built.close()


@on_any
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_sequences_say_the_same(preemption: str, tiny: TinyModel) -> None:
    settings: dict[str, Any] = {"preemption": preemption, "host_kv_memory_bytes": 1 << 20, "kv_memory_bytes": 220 << 10}
    one = engine(tiny("llama"), **settings)
    heard = run_all(one.loop, [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)])
    assert one.loop.load().preemptions > 0
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny("llama"), PROMPTS, 60)


@on_any
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_computes(dtype: str, tiny: TinyModel) -> None:
    heard = run_all(engine(tiny("llama"), dtype=dtype).loop, [spec("a", PROMPTS[3], greedy(NUM_TOKENS))])
    assert len(heard.tokens["a"]) == NUM_TOKENS


@on_a_real_one
def test_too_large_a_pool_is_a_named_error(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="device cuda: CUDA out of memory"):
        engine(tiny("llama"), kv_memory_bytes=1 << 44)


# NCCL wants a GPU for each rank: where two share one, they add up in memory of the host, and all else is as it is.
TWO_RANKS: dict[str, Any] = {"tensor_parallel": 2, "device": "cuda:0,cuda:0"}
TWO_GPUS = pytest.param(
    {"tensor_parallel": 2, "device": "cuda"},
    marks=pytest.mark.skipif(
        IS_REAL and torch.cuda.device_count() < 2, reason="NCCL wants a CUDA device for each of two ranks"
    ),
)


@in_processes
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


@in_processes
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


@in_processes
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_sequences_of_two_ranks_say_the_same(preemption: str, tiny: TinyModel) -> None:
    settings: dict[str, Any] = {"preemption": preemption, "host_kv_memory_bytes": 1 << 20, "kv_memory_bytes": 220 << 10}
    with ranked(tiny("llama"), **TWO_RANKS, **settings) as built:
        heard = run_all(built.loop, [spec(str(i), prompt, greedy(60)) for i, prompt in enumerate(PROMPTS)])
        assert built.loop.load().preemptions > 0
    assert [heard.tokens[str(i)] for i in range(len(PROMPTS))] == generate(tiny("llama"), PROMPTS, 60)


@in_processes
def test_forks_of_two_ranks_say_what_those_of_one_say(tiny: TinyModel) -> None:
    """A tail block is copied for each, in the parts of both."""
    sampling = SamplingParams(max_tokens=20, n=4, temperature=1.0, seed=3, ignore_eos=True)
    with ranked(tiny("llama"), **TWO_RANKS) as built:
        found = [branches_of(each, sampling) for each in (built, engine(tiny("llama")))]
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found[0].values()}) > 1


@in_processes
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


@on_a_real_one
async def test_a_pool_that_cannot_be_mapped_is_a_named_error(tiny: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(EngineFailed, match=r"cuIpcGetMemHandle|expandable_segments"):
        await EngineClient.start(config(tiny("llama"), Role.DECODE))
