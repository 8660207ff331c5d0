"""An engine with host memory: what is cached there is not computed again, and what is preempted may go there."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import ROOT, assert_at_rest, engine, greedy, run_all, spec
from reference import generate

from pagewire.core.block_hash import chain
from pagewire.core.clock import ManualClock
from pagewire.core.engine_messages import Bind, Hold, Join, Reserve
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine.assembly import Engine
from pagewire.engine.block_mover import BlockMover
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.model_runner import ModelRunner
from pagewire.engine.prefix_cache import POOL
from pagewire.engine.runner import OnGroup
from pagewire.engine.step import Computed, Step
from pagewire.engine.step_meter import StepMeter
from pagewire.kernels.torch_backend import TorchBackend

TinyModel = Callable[[str], Path]

BLOCK_BYTES = 16 * 768  # the tiny llama in fp32
NUM_TOKENS = 12


def prompts() -> list[list[int]]:
    chance = random.Random(5)
    shared = [chance.randrange(256) for _ in range(40)]
    own = [[chance.randrange(256) for _ in range(length)] for length in (70, 33, 90, 16, 64)]
    return own + [shared + [chance.randrange(256) for _ in range(length)] for length in (1, 30, 60)]


def small(tiny: TinyModel, role: Role = Role.COLOCATED, slots: int = 64, **changes: Any) -> Any:
    settings = {"kv_memory_bytes": 12 * BLOCK_BYTES, "host_kv_memory_bytes": slots * BLOCK_BYTES, **changes}
    return engine(tiny("llama"), role, max_model_len=128, **settings)


@pytest.mark.parametrize("order", ["layer_outer", "head_outer"])
def test_with_a_host_tier_nothing_is_computed_twice(tiny: TinyModel, order: str) -> None:
    expected = generate(tiny("llama"), prompts(), NUM_TOKENS)
    built = small(tiny, kv_order=order)
    built.cache.pool.fill_(torch.nan)
    for turn in ("first", "second", "third"):
        for i, prompt in enumerate(prompts()):
            name = f"{turn} {i}"
            heard = run_all(built.loop, [spec(name, prompt, greedy(NUM_TOKENS))])
            assert heard.tokens[name] == expected[i]
            if turn != "first":
                end = heard.ends[name]
                assert end.cached_tokens == (len(prompt) - 1) // 16 * 16
                assert end.cached_tokens + end.computed_tokens == len(prompt)
    load = built.loop.load()
    assert load.blocks_host > load.blocks_total, "more was kept than the pool can hold"
    assert_at_rest(built.loop)


def test_a_hold_brings_up_what_is_in_host_memory(tiny: TinyModel) -> None:
    built = small(tiny)
    prompt = prompts()[2]
    run_all(built.loop, [spec("a", prompt, greedy(1))])
    names = tuple(chain(ROOT, prompt, 16))
    first = built.loop.hold(Hold(request_id="h", hashes=names))
    before = built.cache.pool[list(first.block_ids)].clone()
    built.loop.release("h")
    run_all(built.loop, [spec("b", prompts()[0] + prompts()[1], greedy(1))])
    run_all(built.loop, [spec("c", prompts()[4] + prompts()[3], greedy(1))])
    assert built.loop.load().blocks_host > 0
    held = built.loop.hold(Hold(request_id="i", hashes=names[1:]))
    assert len(held.block_ids) == len(names) - 1
    assert torch.equal(built.cache.pool[list(held.block_ids)], before[1:])
    built.loop.check()
    assert built.loop.load().blocks_orphaned == 0
    built.loop.release("i")
    assert_at_rest(built.loop)


def test_what_was_cached_in_a_bound_block_is_saved_before_others_write_there(tiny: TinyModel) -> None:
    built = small(tiny, Role.DECODE)
    prompt, other = prompts()[2], [9] * 120
    run_all(built.loop, [spec("a", prompt, greedy(1))])
    assert built.loop.reserve(Reserve(spec=spec("b", other, greedy(5)))).error is None
    bound = built.loop.bind(Bind(request_id="b", num_blocks=9)).block_ids
    assert built.loop.load().blocks_host == 2
    built.cache.pool[list(bound)] = torch.nan  # as a transport writes, while no step runs
    built.loop.abort("b")
    reserved = built.loop.reserve(Reserve(spec=spec("c", prompt, greedy(NUM_TOKENS))))
    assert reserved.hit_blocks == 5
    built.loop.join(Join(request_id="c", num_computed=80, output=()))
    heard = run_all(built.loop, [])
    assert heard.tokens["c"] == generate(tiny("llama"), [prompt], NUM_TOKENS)[0]
    assert (heard.ends["c"].cached_tokens, heard.ends["c"].computed_tokens) == (80, 10)
    assert_at_rest(built.loop)


def test_without_host_memory_there_is_no_tier(tiny: TinyModel) -> None:
    built = small(tiny, slots=0)
    run_all(built.loop, [spec(str(i), prompt, greedy(1)) for i, prompt in enumerate(prompts())])
    assert built.loop.load().blocks_host == 0
    assert all(block.tier == POOL for block in built.scheduler.pool.cached_chain())


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(max_tokens=60, temperature=0.9, top_p=0.95, seed=seed, ignore_eos=True)


class CountedRunner:
    """Counts the tokens that a runner computes."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.num_tokens = 0
        self.num_recaptures = 0

    def rehearse(self) -> None:
        """Nothing is cold."""

    def run(self, step: Step, on_group: OnGroup) -> dict[str, Computed]:
        self.num_tokens += step.num_tokens
        return self._runner.run(step, on_group)


def run_crowded(
    built: Engine, asked: list[SequenceSpec], meter: StepMeter | None = None
) -> tuple[dict[str, list[int]], int]:
    """Run all at once; return the tokens, and how many were computed beyond what an uninterrupted run computes."""
    runner = CountedRunner(built.runner)
    if meter is not None:
        built.scheduler.preemption.meter = meter
    mover = BlockMover(built.cache.parts, built.scheduler.pool.host.num_slots, TorchBackend())
    heard = run_all(EngineLoop(built.scheduler, runner, ManualClock(), mover), asked)
    needed = sum(len(one.tokens) + one.sampling.max_tokens - 1 for one in asked)
    assert_at_rest(built.loop)
    assert built.scheduler.num_preemptions > 0
    return heard.tokens, runner.num_tokens - needed


@pytest.mark.parametrize("sampling", [lambda i: greedy(60), sampled], ids=["greedy", "seeded"])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
@pytest.mark.parametrize("policy", ["fcfs", "srpt"])
def test_preemption_changes_no_token_and_a_swap_computes_none_twice(
    tiny: TinyModel, sampling: Callable[[int], SamplingParams], mode: str, policy: str
) -> None:
    asked = [spec(str(i), prompt[:60], sampling(i)) for i, prompt in enumerate(prompts()[:5])]
    never = engine(tiny("llama"), max_model_len=128)
    expected = run_all(never.loop, asked).tokens
    assert never.scheduler.num_preemptions == 0
    built = small(tiny, kv_memory_bytes=17 * BLOCK_BYTES, preemption=mode, scheduling=policy)
    built.cache.pool.fill_(torch.nan)
    tokens, computed_again = run_crowded(built, asked)
    assert tokens == expected
    scheduler = built.scheduler
    if mode == "swap":
        assert (scheduler.num_swaps, computed_again) == (scheduler.num_preemptions, 0)
    else:
        assert scheduler.num_swaps == 0
        assert computed_again > 0
    assert not any(parked.is_tail for parked in scheduler.pool.host.parked()), "a tail outlives its sequence"


@pytest.mark.parametrize(("copy_s", "prefill_s", "swaps"), [(1.0, 1e-4, False), (1e-4, 1.0, True), (1.0, 0.0, True)])
def test_the_cheaper_way_is_taken(tiny: TinyModel, copy_s: float, prefill_s: float, swaps: bool) -> None:
    """Measured rates decide; a manual clock measures nothing, so those that are set stay."""

    class Fixed(StepMeter):
        def observe(self, num_prefill_tokens: int, num_decodes: int, elapsed_s: float, num_drafted: int = 0) -> None:
            assert elapsed_s == 0.0

        def observe_copies(self, num_blocks: int, elapsed_s: float, *, is_out: bool) -> None:
            assert elapsed_s == 0.0

    meter = Fixed()
    meter.copy_out_s_per_block = meter.copy_in_s_per_block = copy_s
    meter.prefill_s_per_token = prefill_s
    asked = [spec(str(i), prompt[:60], greedy(60)) for i, prompt in enumerate(prompts()[:5])]
    built = small(tiny, kv_memory_bytes=17 * BLOCK_BYTES)
    tokens, _ = run_crowded(built, asked, meter)
    assert [tokens[str(i)] for i in range(5)] == generate(tiny("llama"), [prompt[:60] for prompt in prompts()[:5]], 60)
    assert built.scheduler.num_swaps == (built.scheduler.num_preemptions if swaps else 0)


@pytest.mark.parametrize("slots", [2, 3, 5, 9])
def test_a_tier_too_small_for_what_is_swapped_costs_computing_and_no_token(tiny: TinyModel, slots: int) -> None:
    asked = [spec(str(i), prompt[:60], sampled(i)) for i, prompt in enumerate(prompts()[:5])]
    expected = run_all(engine(tiny("llama"), max_model_len=128).loop, asked).tokens
    built = small(tiny, kv_memory_bytes=17 * BLOCK_BYTES, slots=slots, preemption="swap")
    tokens, _ = run_crowded(built, asked)
    assert tokens == expected


def test_what_copies_cost_is_learnt_and_told(tiny: TinyModel) -> None:
    built = small(tiny, kv_memory_bytes=17 * BLOCK_BYTES)
    run_all(built.loop, [spec(str(i), prompt[:60], greedy(60)) for i, prompt in enumerate(prompts()[:5])])
    load = built.loop.load()
    assert 0 < load.preemptions_swapped <= load.preemptions
    assert load.copy_out_s_per_block > 0
    assert load.copy_in_s_per_block > 0


def test_a_swap_without_host_memory_is_refused_by_name(tiny: TinyModel) -> None:
    with pytest.raises(ValueError, match="host_kv_memory"):
        engine(tiny("llama"), preemption="swap")
