"""The feed behind /ui: made only for who watches, once for an interval, the newest to all, to each what is its own."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter, eventually

from pagewire.core.errors import Draining, Overloaded
from pagewire.core.load import Inflow, Load
from pagewire.core.messages import Role
from pagewire.core.timeline import Phase, Stopwatch
from pagewire.router.ask import Ask
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.router.live import board, snapshot
from pagewire.router.live.board import Board
from pagewire.router.live.feed import Feed

OPERATOR = "the operator's key"
PATIENT_S = 60.0


class HandClock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


class Counting:
    """Something to see that says how often it was looked at."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.looks = 0

    def pods(self) -> dict[str, Any]:
        self.looks += 1
        return {"pods": self.looks}

    def requests(self, tenant: str | None) -> dict[str, Any]:
        self.asked.append(tenant)
        return {"of": tenant, "number": len(self.asked)}


def told(frame: bytes) -> dict[str, Any]:
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    assert b"\n" not in frame[:-2]
    said: dict[str, Any] = json.loads(frame[6:])
    return said


# ------------------------------------------------------------------------------------------------------------ the feed


async def test_nothing_is_made_while_nobody_watches() -> None:
    source, clock = Counting(), HandClock()
    feed = Feed(source, clock, watch_s=1e9, interval_s=0.001)
    for _ in range(20):
        clock.now_s += 1.0
        await asyncio.sleep(0.002)
    assert (source.asked, source.looks) == ([], 0)
    async with aclosing(feed.watch(None)) as frames:
        await anext(frames)
    assert (source.asked, source.looks, feed.num_watchers) == ([None], 1, 0)
    for _ in range(20):
        clock.now_s += 1.0
        await asyncio.sleep(0.002)
    assert (source.asked, source.looks) == ([None], 1)


async def test_all_who_watch_share_what_is_made_once_for_an_interval() -> None:
    source, clock = Counting(), HandClock()
    feed = Feed(source, clock, watch_s=1e9, interval_s=0.001)
    watchers = [feed.watch(view) for view in [None] * 9 + ["acme"] * 9]
    for interval in range(1, 6):
        frames = [await anext(each) for each in watchers]
        assert len(set(frames)) == 2
        assert source.asked == [None, "acme"] * interval
        assert source.looks == interval, "pods are looked at for those alone who may see all"
        clock.now_s += 0.001
    for each in watchers:
        await each.aclose()
    assert feed.num_watchers == 0


async def test_a_slow_watcher_gets_the_newest_and_nothing_waits_for_it() -> None:
    source, clock = Counting(), HandClock()
    feed = Feed(source, clock, watch_s=1e9, interval_s=0.001)
    slow, quick = feed.watch(None), feed.watch(None)
    assert told(await anext(slow))["number"] == 1
    for number in range(1, 50):
        assert told(await anext(quick))["number"] == number
        clock.now_s += 0.001
    assert told(await anext(slow))["number"] == 50
    assert len(source.asked) == 50
    await slow.aclose()
    await quick.aclose()


async def test_only_so_many_watch_and_who_leaves_makes_room() -> None:
    feed = Feed(Counting(), HandClock(), watch_s=1e9, max_watchers=2)
    first, second = feed.watch(None), feed.watch("acme")
    await anext(first)
    await anext(second)
    with pytest.raises(Overloaded):
        await anext(feed.watch(None))
    await first.aclose()
    third = feed.watch(None)
    await anext(third)
    assert feed.num_watchers == 2
    await second.aclose()
    await third.aclose()


async def test_nobody_watches_for_longer_than_is_said() -> None:
    clock = HandClock()
    feed = Feed(Counting(), clock, watch_s=10.0, interval_s=0.001)
    watcher = feed.watch(None)
    for _ in range(10):
        await anext(watcher)
        clock.now_s += 1.0
    assert await anext(watcher, None) is None
    assert feed.num_watchers == 0


async def test_who_watches_is_let_go_when_the_router_goes() -> None:
    feed = Feed(Counting(), HandClock(), watch_s=1e9, interval_s=3600.0)
    watcher = feed.watch(None)
    await anext(watcher)
    rest = asyncio.create_task(anext(watcher, None))
    await asyncio.sleep(0)
    feed.close()
    assert await asyncio.wait_for(rest, PATIENT_S) is None
    assert feed.num_watchers == 0
    with pytest.raises(Draining):
        await anext(feed.watch(None))


# -------------------------------------------------------------------------------------------------------- what it says


def ask(request_id: str) -> Ask:
    return Ask(request_id=request_id, text="what nobody else may read")


def test_a_board_forgets_what_was_never_taken_in() -> None:
    found = Board()
    watch = Stopwatch("r")
    watch.stamp(Phase.RECEIVED, 1.0)
    entry = found.enter(ask("a"), "m", watch)
    assert [each.request_id for each in found.running(None)] == ["a"]
    found.leave(entry, "unavailable")
    assert list(found.running(None)) == []
    assert list(found.past(None)) == []


# ------------------------------------------------------------------------------------------------------- a real router


def a_key() -> NewKey:
    return NewKey.of(secrets.token_bytes(KEY_BYTES))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def look(router: RunningRouter, headers: dict[str, str] | None = None, until: Any = lambda _: True) -> Any:
    """Return the first snapshot of which `until` holds."""
    async with asyncio.timeout(PATIENT_S), router.http.stream("GET", "/ui/events", headers=headers) as stream:
        assert stream.status_code == 200, await stream.aread()
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            if line and until(said := told(f"{line}\n\n".encode())):
                return said
    raise AssertionError("the stream ended")


@pytest.fixture
def keys() -> dict[str, NewKey]:
    return {name: a_key() for name in ("acme", "other", "boss")}


@pytest.fixture
def key_file(keys: dict[str, NewKey], tmp_path: Path) -> str:
    rows = [
        f"[tenants.{name}]\nkeys = ['{key.line}']\noperator = {str(name == 'boss').lower()}\n"
        for name, key in keys.items()
    ]
    path = tmp_path / "keys.toml"
    path.write_text("\n".join(rows))
    return str(path)


async def test_a_request_is_shown_while_it_runs_and_when_it_is_over(start: StartRouter) -> None:
    pod = FakePod("c0")
    pod.hold_at = 3
    async with start(pod, slo_ttft_s=2.5, slo_tpot_s=0.1) as router:
        task = asyncio.create_task(router.complete("hello world", max_tokens=8))
        said = await look(router, until=lambda each: each["running"] and each["running"][0]["output_tokens"] == 3)
        assert said["sees_all"]
        assert said["models"] == ["fake"]
        assert said["slo"] == {"ttft_s": 2.5, "tpot_s": 0.1}
        (running,) = said["running"]
        assert (running["decode_pod"], running["prompt_tokens"]) == ("c0", len(pod.submits[0].spec.tokens))
        stamped = running["timelines"][0]["at_ms"]
        assert list(stamped) == ["received", "tokenized", "looked_up", "placed", "submitted", "first_token"]
        assert stamped["received"] == 0.0
        assert list(stamped.values()) == sorted(stamped.values())
        assert running["age_ms"] >= stamped["first_token"]
        pod.release()
        answer = (await task).json()
        said = await look(router, until=lambda each: not each["running"])
        (past,) = said["finished"]
        assert past["outcome"] == answer["choices"][0]["finish_reason"]
        assert past["output_tokens"] == answer["usage"]["completion_tokens"] == 8
        assert [each["process"] for each in past["timelines"]] == ["router", "c0"]
        assert said["latencies"] == [[past["ttft_ms"], past["tpot_ms"]]]
        assert past["ttft_ms"] == past["timelines"][0]["at_ms"]["first_token"]
        assert "hello" not in json.dumps(said)


async def test_pools_and_links_are_shown_as_pods_report_them(start: StartRouter) -> None:
    pods = FakePod("p0", role=Role.PREFILL), FakePod("d0", role=Role.DECODE)
    pods[1].load = Load(
        blocks_total=100, blocks_free=40, blocks_cached=20, blocks_held=30, blocks_pinned=10, blocks_reserved=5,
        blocks_arriving=7, num_running=4, num_waiting=2, inflows=(Inflow(source="p0", num_bytes=4096),), at_s=1.0,
    )  # fmt: skip
    async with start(*pods) as router:
        said = await look(router, until=lambda each: each["pods"][1]["blocks"]["total"])
        assert [(each["id"], each["role"], each["unusable"]) for each in said["pods"]] == [
            ("p0", "prefill", ""),
            ("d0", "decode", ""),
        ]
        blocks = {"total": 100, "free": 35, "cached": 30, "running": 23, "reserved": 5, "arriving": 7}
        assert said["pods"][1]["blocks"] == blocks
        assert said["links"] == [{"from": "p0", "to": "d0", "bytes": 4096, "bytes_per_s": None}]
        async with router.http.stream("GET", "/ui/events") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            pods[1].load = Load(blocks_total=100, inflows=(Inflow(source="p0", num_bytes=14096),), at_s=3.0)
            async with asyncio.timeout(PATIENT_S):
                async for line in lines:
                    links = told(f"{line}\n\n".encode())["links"] if line else []
                    if links and links[0]["bytes_per_s"]:
                        break
            assert links == [{"from": "p0", "to": "d0", "bytes": 14096, "bytes_per_s": 5000.0}]


async def test_lists_are_bounded(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_PODS", 1)
    pod = FakePod("c0")
    async with start(pod, FakePod("c1")) as router:
        await asyncio.gather(*(router.complete("a", max_tokens=2) for _ in range(board.MAX_PAST + 20)))
        pod.hold_at = 0
        router.pods[1].hold_at = 0
        held = [asyncio.create_task(router.complete("b", max_tokens=2)) for _ in range(snapshot.MAX_RUNNING + 5)]
        said = await look(router, until=lambda each: each["running_left_out"] == 5)
        assert len(said["running"]) == snapshot.MAX_RUNNING
        assert len(said["finished"]) == snapshot.MAX_FINISHED
        assert len(said["latencies"]) == snapshot.MAX_LATENCIES
        assert (len(said["pods"]), said["pods_left_out"]) == (1, 1)
        for each in router.pods:
            each.release()
        await asyncio.gather(*held)


async def test_a_tenant_sees_its_own_requests_and_an_operator_all(
    start: StartRouter, keys: dict[str, NewKey], key_file: str
) -> None:
    async with start(
        FakePod("c0"), api_keys=key_file, operator_key=OPERATOR, headers=bearer(keys["boss"].key)
    ) as router:
        for name in ("acme", "other", "other"):
            body = {"prompt": f"the secret of {name}", "max_tokens": 3}
            headers = {**bearer(keys[name].key), "x-request-id": f"of-{name}"}
            assert (await router.http.post("/v1/completions", json=body, headers=headers)).status_code == 200
        ids = {}
        for name, key in {**{name: key.key for name, key in keys.items()}, "by key": OPERATOR}.items():
            said = await look(router, bearer(key))
            ids[name] = [each["id"] for each in said["finished"]]
            sees_all = name in ("boss", "by key")
            assert said["sees_all"] == sees_all
            assert ("pods" in said, "links" in said) == (sees_all, sees_all)
            assert len(said["latencies"]) == len(ids[name])
            assert "secret" not in json.dumps(said)
        everybody = ["of-other", "of-other", "of-acme"]
        assert ids == {"acme": ["of-acme"], "other": ["of-other"] * 2, "boss": everybody, "by key": everybody}


async def test_the_page_is_open_and_its_feed_is_not(start: StartRouter, keys: dict[str, NewKey], key_file: str) -> None:
    async with start(FakePod("c0"), api_keys=key_file, headers=bearer(keys["acme"].key)) as router:
        async with httpx.AsyncClient(base_url=router.addresses["http"], trust_env=False) as nobody:
            refused = await nobody.get("/ui/events")
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Bearer")
            assert (await nobody.get("/ui/..%2fhttp.py")).status_code == 401
            page = await nobody.get("/ui")
            assert page.status_code == 200
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert (await nobody.get("/ui/")).headers["location"] == "../ui"
        assert (await router.http.get("/ui/none.js")).status_code == 404
        assert (await router.http.post("/ui/events")).status_code == 405


async def test_a_watcher_that_goes_is_forgotten_and_one_that_stays_is_let_go(start: StartRouter) -> None:
    async with start(FakePod("c0"), drain_s=0.1) as router:

        async def watched() -> bool:
            # More than may watch, one after the other: each that leaves has made room.
            for _ in range(40):
                await look(router)
            return True

        await eventually(watched)
        async with router.http.stream("GET", "/ui/events") as stream:
            lines = stream.aiter_lines()
            await anext(lines)
            router.lifecycle.drain("the test drains")
            async with asyncio.timeout(PATIENT_S):
                async for _ in lines:  # where a connection is cut, this raises
                    pass
        await asyncio.wait_for(router.task, PATIENT_S)


def references(text: str) -> Iterator[str]:
    for mark in ('src="', 'href="', "url(", 'from "', "@import"):
        for part in text.split(mark)[1:]:
            yield part.split('"')[0].split(")")[0]


def test_the_page_is_small_and_loads_nothing_from_elsewhere() -> None:
    folder = Path(snapshot.__file__).parent.parent / "ui"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert sum(len(text.encode()) for text in texts.values()) < 60_000
    for name, text in texts.items():
        for each in references(text):
            assert each.startswith(("ui/", "./", "#", "--", "${")), f"{name} refers to {each}"
        assert "style=" not in text.replace("stroke-style=", "")
        assert not any(f" on{event}=" in text for event in ("click", "load", "error", "submit", "input"))
        assert "innerHTML" not in text
        assert "eval(" not in text
