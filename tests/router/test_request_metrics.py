"""What a router shows of requests, over HTTP, before a fake pod: a token counts once it is out."""

from __future__ import annotations

import asyncio
import contextlib
import math

import pytest
from fake_pod import FakePod
from histogram_bounds import BUCKETS
from prometheus_client.parser import text_string_to_metric_families
from router_rig import RunningRouter, StartRouter, eventually

from pagewire.core.errors import EngineFailed


async def total(router: RunningRouter, name: str, **labels: str) -> float:
    """Return the sum of a sample's values that have these labels."""
    text = (await router.http.get("/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def bounds(router: RunningRouter) -> dict[str, set[tuple[float, ...]]]:
    """Return the bounds of each histogram that others named, one list unless its series differ in them."""
    found: dict[str, set[tuple[float, ...]]] = {}
    for family in text_string_to_metric_families((await router.http.get("/metrics")).text):
        if family.type == "histogram" and family.name.startswith(("vllm:", "gen_ai")):
            series: dict[frozenset[tuple[str, str]], list[float]] = {}
            for sample in family.samples:
                if sample.name == f"{family.name}_bucket":
                    labels = {name: value for name, value in sample.labels.items() if name != "le"}
                    series.setdefault(frozenset(labels.items()), []).append(float(sample.labels["le"]))
            found[family.name] = {tuple(each) for each in series.values()}
    return found


async def test_a_whole_answer_is_counted_under_all_names(start: StartRouter) -> None:
    async with start(FakePod("c0"), slo_ttft_s=1000.0, name="front-3") as router:
        said = (await router.complete("hello", max_tokens=6, n=2, ignore_eos=True)).json()
        output = said["usage"]["completion_tokens"]
        assert output == 12
        assert await total(router, "vllm:generation_tokens_total", engine="front-3") == output
        assert await total(router, "vllm:prompt_tokens_total") == said["usage"]["prompt_tokens"]
        assert await total(router, "vllm:request_success_total", finished_reason="length") == 2
        assert await total(router, "vllm:request_generation_tokens_sum") == output
        assert await total(router, "vllm:request_max_num_generation_tokens_sum") == 6
        assert await total(router, "vllm:request_params_n_sum") == 2
        assert await total(router, "vllm:time_to_first_token_seconds_count") == 1
        assert await total(router, "vllm:request_time_per_output_token_seconds_count") == 1
        operation = {"gen_ai_operation_name": "text_completion", "gen_ai_provider_name": "pagewire"}
        assert await total(router, "gen_ai_client_token_usage_sum", gen_ai_token_type="output", **operation) == output
        assert await total(router, "gen_ai_server_request_duration_seconds_count", error_type="", **operation) == 1
        for slo in ("availability", "ttft"):
            assert await total(router, "pagewire_router_slo_requests_total", slo=slo, result="met") == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_token_that_a_score_draws_is_not_counted(start: StartRouter, stream: bool) -> None:
    async with start(FakePod("c0")) as router:
        scored = await router.complete("hello", max_tokens=0, echo=True, logprobs=0, n=2, stream=stream)
        assert scored.status_code == 200
        for name in (
            "vllm:generation_tokens_total",
            "vllm:request_generation_tokens_sum",
            "vllm:request_max_num_generation_tokens_sum",
        ):
            assert await total(router, name) == 0, name
        assert await total(router, "gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 0
        assert await total(router, "vllm:request_prompt_tokens_sum") == 2
        assert await total(router, "vllm:request_success_total", finished_reason="length") == 2


async def test_buckets_are_those_that_others_expect(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        await router.complete("hello", max_tokens=3, ignore_eos=True)
        found = await bounds(router)
        assert found.keys() == BUCKETS.keys()
        for name, expected in BUCKETS.items():
            assert found[name] == {(*map(float, expected.split()), math.inf)}, name


async def test_tokens_of_a_request_that_runs_are_counted_and_stay_when_its_caller_goes(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 5
    async with start(pod) as router:
        asking = asyncio.create_task(router.complete("hello", max_tokens=9, ignore_eos=True))

        async def tokens_are_out() -> bool:
            return await total(router, "vllm:generation_tokens_total") == 5

        await eventually(tokens_are_out)
        assert await total(router, "vllm:request_success_total") == 0
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

        async def is_aborted() -> bool:
            return await total(router, "vllm:request_success_total", finished_reason="abort") == 1

        await eventually(is_aborted)
        assert await total(router, "vllm:generation_tokens_total") == 5
        assert await total(router, "pagewire_router_slo_requests_total") == 0


async def test_a_failure_is_named_and_spends_the_error_budget(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.fail_at = (3, EngineFailed("it broke"))
    async with start(pod, max_attempts=1) as router:
        assert (await router.complete("hello", max_tokens=9, ignore_eos=True)).status_code == 500
        assert await total(router, "vllm:request_success_total", finished_reason="error") == 1
        duration = "gen_ai_server_request_duration_seconds_count"
        assert await total(router, duration, error_type=EngineFailed.cause) == 1
        assert await total(router, "pagewire_router_slo_requests_total", slo="availability", result="missed") == 1
        assert await total(router, "vllm:generation_tokens_total") == 3


async def test_a_caller_who_asks_what_cannot_be_spends_nothing(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        assert (await router.complete("hello", max_tokens=-1)).status_code == 400
        assert await total(router, "pagewire_router_slo_requests_total") == 0
