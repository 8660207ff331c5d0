"""The room for bodies under way: a bound for all, a part of it for each tenant, and small ones in nobody's way."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from fake_pod import FakePod
from hypothesis import given
from hypothesis import strategies as st
from router_rig import StartRouter, eventually

from pagewire.router.body_room import FREE_BYTES, Body, BodyRoom
from pagewire.router.refusals import Reason, Refused
from pagewire.router.tenants import ANONYMOUS, Tenant

MOST = 1000
TENANTS = tuple(Tenant(name=name) for name in "abc")
STEPS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([None, 1, 100, 300, FREE_BYTES])), max_size=60)


@given(STEPS)
def test_no_more_is_taken_than_there_is_and_each_tenant_finds_some(steps: list[tuple[int, int | None]]) -> None:
    room = BodyRoom(MOST)
    bodies: dict[int, tuple[Body, bytes]] = {}
    for which, size in steps:
        tenant = TENANTS[which % 3]
        body, come = bodies.pop(which) if which in bodies else (room.body(tenant), b"")
        if size is None:
            assert body.take() == come
            continue
        part = bytes([which]) * size
        grown = max(0, len(come) + size - FREE_BYTES) - max(0, len(come) - FREE_BYTES)
        held = taken_by(bodies) + Counter({tenant.name: max(0, len(come) - FREE_BYTES)})
        fits = not grown or held[tenant.name] + grown <= MOST - held.total() - grown
        try:
            body.add(part)
        except Refused:
            assert not fits
        else:
            assert fits
            come += part
            left = MOST - room.taken
            assert not grown or left >= held[tenant.name] + grown > 0, "whoever comes next finds nothing"
        bodies[which] = body, come
        taken = taken_by(bodies)
        assert room.taken == taken.total() <= MOST
    for body, _ in bodies.values():
        with body:
            pass
    assert room.taken == 0


def taken_by(bodies: dict[int, tuple[Body, bytes]]) -> Counter[str]:
    """Return what is counted of each tenant."""
    taken: Counter[str] = Counter()
    for which, (_, come) in bodies.items():
        taken[TENANTS[which % 3].name] += max(0, len(come) - FREE_BYTES)
    return taken


def test_a_body_that_found_no_room_gives_back_what_it_had() -> None:
    room = BodyRoom(MOST)
    with room.body(ANONYMOUS) as body:
        body.add(b" " * 65_536)
        assert room.taken == 0
        body.add(b" " * (MOST // 2))
        assert room.taken == MOST // 2, "alone a tenant has half"
        with pytest.raises(Refused) as refused:
            body.add(b" ")
        assert refused.value.reason is Reason.BODIES
    assert room.taken == 0


def test_a_tenant_that_has_more_than_others_left_sends_small_ones_and_gives_back() -> None:
    """What it had in before the others came is more than it would get now."""
    room = BodyRoom(MOST)
    sizes = (440, 10), (270,), (140,)
    bodies = [[room.body(tenant) for _ in each] for tenant, each in zip(TENANTS, sizes, strict=True)]
    for own, each in zip(bodies, sizes, strict=True):
        for body, size in zip(own, each, strict=True):
            body.add(b" " * (FREE_BYTES + size))
    assert room.taken == 860
    room.body(TENANTS[0]).add(b" " * FREE_BYTES)
    with pytest.raises(Refused):
        room.body(TENANTS[0]).add(b" " * (FREE_BYTES + 1))
    bodies[0][1].take()
    assert room.taken == 850


async def test_bodies_that_do_not_come_to_their_ends_leave_room_for_others(start: StartRouter) -> None:
    """Each door that reads a body refuses what is too much, with a time to come back, and goes on with small ones."""
    size = FREE_BYTES + (100 << 10)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    async with start(FakePod("c0"), max_body_bytes=200 << 10, max_bodies_bytes=400 << 10) as router:
        host, port = router.addresses["http"].removeprefix("http://").split(":")
        slow = []
        for sent in (b"/v1/completions", b"/tokenize"):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head % (sent, size + 1) + b" " * size)
            await writer.drain()
            slow.append(writer)

        async def is_full() -> bool:
            return (await router.complete("a" * size)).status_code == 429

        await eventually(is_full)
        assert await router.metric("pagewire_router_refusals_total") >= 1
        for path in ("/v1/completions", "/tokenize", "/v1/messages", "/v1/messages/count_tokens"):
            refused = await router.http.post(path, content=b" " * size)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert "leaves no room" in refused.json()["error"]["message"]
        assert (await router.complete("small")).status_code == 200
        for writer in slow:
            writer.close()

        async def is_read() -> bool:
            return (await router.http.post("/v1/completions", content=b" " * size)).status_code == 400

        await eventually(is_read)
