"""Changes of roles through a real router before fake pods: the operator's door, the lease, the balancing."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import byte_tokenizer
import httpx
import pytest
from fake_pod import FakePod, fingerprint
from router_rig import RunningRouter, StartRouter, eventually

from pagewire.cli.role import run
from pagewire.core.errors import Draining, PodLost, RoleRefused, Unauthenticated, Unavailable
from pagewire.core.load import Load
from pagewire.core.messages import ChangeRole, LinkMessage, Role
from pagewire.router import role_changes
from pagewire.router.keys import KEY_BYTES, NewKey
from pagewire.serving.leases import Leases
from pagewire.serving.link import Link

KEY = "the operator's key"


async def ask(router: RunningRouter, pod_id: str, role: object, key: str = KEY) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await router.http.post(f"/pods/{pod_id}/role", json={"role": role}, headers=headers)


async def obeyed(router: RunningRouter, pod: FakePod) -> None:
    """Have a fake pod do what it was told last."""
    await pod.until(lambda: pod.orders)
    pod.come_back(pod.orders[-1])
    await router.registry.register(pod.registration)


def quartet() -> tuple[FakePod, FakePod, FakePod, FakePod]:
    return (*trio(), FakePod("p1", role=Role.PREFILL))


def trio() -> tuple[FakePod, FakePod, FakePod]:
    return FakePod("p0", role=Role.PREFILL), FakePod("d0", role=Role.DECODE), FakePod("d1", role=Role.DECODE)


async def test_an_operator_is_told_the_new_incarnation_once_it_is_seen(start: StartRouter) -> None:
    p0, d0, d1 = trio()
    async with start(p0, d0, d1, operator_key=KEY) as router:
        asking = asyncio.create_task(ask(router, "d1", "prefill"))
        await d1.until(lambda: d1.orders)
        while_it_drains = await ask(router, "d0", "prefill")
        assert (while_it_drains.status_code, while_it_drains.json()["error"]["code"]) == (409, "role_refused")
        assert not asking.done()
        await obeyed(router, d1)
        answer = await asking
        assert answer.status_code == 202
        assert answer.json() == {"pod_id": "d1", "role": "prefill", "was": "decode", "incarnation": "2"}
        assert d0.orders == []
        assert (await router.complete()).status_code == 200
        assert len(d0.submits) == 1
        # The lease is free again, and the last pod that decodes stays.
        refused = await ask(router, "d0", "prefill")
        assert refused.status_code == 409
        assert "last pod that decodes" in refused.json()["error"]["message"]
        assert d0.orders == []


@pytest.mark.parametrize("role", ["decode", "colocated"])
async def test_the_last_prefill_pod_stays(start: StartRouter, role: str) -> None:
    p0, d0, d1, p1 = quartet()
    async with start(p0, d0, d1, operator_key=KEY) as router:
        refused = await ask(router, "p0", role)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "role_refused")
        assert "last prefill pod" in refused.json()["error"]["message"]
        assert p0.orders == []
    async with start(p0, p1, d0, operator_key=KEY, role_change_wait_s=0.2) as router:
        assert (await ask(router, "p0", role)).status_code == 202
        assert p0.orders == [Role(role)]


async def test_a_pod_that_is_back_is_looked_for_at_once(start: StartRouter) -> None:
    p0, d0, d1 = trio()
    async with start(p0, d0, d1, operator_key=KEY, discovery_s=3600.0, role_change_wait_s=60.0) as router:
        asking = asyncio.create_task(ask(router, "d1", "prefill"))
        await obeyed(router, d1)
        assert (await asking).json()["incarnation"] == "2"


async def test_the_command_says_what_the_router_says(start: StartRouter, capsys: pytest.CaptureFixture[str]) -> None:
    p0, d0, d1 = trio()
    async with start(p0, d0, d1, operator_key=KEY) as router:
        url = router.addresses["http"]
        telling = asyncio.create_task(asyncio.to_thread(run, url, "d1", Role.PREFILL, KEY))
        await obeyed(router, d1)
        await telling
        assert json.loads(capsys.readouterr().out)["incarnation"] == "2"
        with pytest.raises(RoleRefused, match="last pod that decodes"):
            await asyncio.to_thread(run, url, "d0", Role.PREFILL, KEY)
        with pytest.raises(Unauthenticated):
            await asyncio.to_thread(run, url, "d0", Role.PREFILL, "")
    with pytest.raises(Unavailable, match="does not answer as a router does"):
        await asyncio.to_thread(run, url, "d0", Role.PREFILL, KEY)


@pytest.mark.parametrize("answer", [b'{"error": "not found"}', b'{"error": {"code": 1}}', b"[]", b"no JSON"])
def test_the_command_says_so_where_something_else_answers(answer: bytes) -> None:
    class Server(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(404)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(Unavailable, match="does not answer as a router does"):
            run(f"http://127.0.0.1:{server.server_port}", "d0", Role.PREFILL, KEY)
        thread.join()


@pytest.mark.parametrize("key", ["hush\r", "hush ", "hüsh"])
def test_a_key_that_no_header_can_hold_is_the_callers_and_is_not_told(key: str) -> None:
    with pytest.raises(ValueError, match="an API key is printable ASCII") as caught:
        run("http://127.0.0.1:1", "d0", Role.PREFILL, key)
    assert key.strip() not in str(caught.value)


@pytest.mark.parametrize(
    ("pod_id", "role", "key", "status", "code"),
    [
        ("d1", "prefill", "another key", 401, "unauthenticated"),
        ("d1", "prefill", "", 401, "unauthenticated"),
        ("d7", "prefill", KEY, 404, "pod_not_found"),
        ("d1", "router", KEY, 400, "invalid_request"),
        ("d1", ["decode"], KEY, 400, "invalid_request"),
        ("d1", None, KEY, 400, "invalid_request"),
    ],
)
async def test_what_cannot_be_is_refused_before_any_pod_hears_of_it(
    start: StartRouter, pod_id: str, role: Any, key: str, status: int, code: str
) -> None:
    pods = trio()
    async with start(*pods, operator_key=KEY) as router:
        answer = await ask(router, pod_id, role, key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert all(pod.orders == [] for pod in pods)


async def test_without_a_key_in_the_configuration_nobody_may(start: StartRouter) -> None:
    async with start(*trio()) as router:
        for key in ("", KEY):
            assert (await ask(router, "d1", "prefill", key)).status_code == 401


async def test_a_tenants_key_changes_nothing_unless_it_is_an_operators(start: StartRouter, tmp_path: Path) -> None:
    tenant, chief = NewKey.of(b"k" * KEY_BYTES), NewKey.of(b"c" * KEY_BYTES)
    file, pods = tmp_path / "keys.toml", trio()
    rows = f"[tenants.acme]\nkeys = ['{tenant.line}']\n[tenants.chief]\nkeys = ['{chief.line}']\noperator = true\n"
    file.write_text(rows)
    for mine, settings in ((KEY, {"operator_key": KEY}), (chief.key, {})):
        pods = trio()
        async with start(*pods, **settings, api_keys=str(file), open_metrics=True) as router:
            assert (await ask(router, "d1", "prefill", "")).status_code == 401
            assert (await ask(router, "d1", "prefill", tenant.key)).status_code == 403
            assert all(pod.orders == [] for pod in pods)
            asking = asyncio.create_task(ask(router, "d1", "prefill", mine))
            await obeyed(router, pods[2])
            assert (await asking).status_code == 202
    async with start(*trio(), api_keys=str(file), open_metrics=True) as router:
        assert (await ask(router, "d1", "prefill", KEY)).status_code == 401


@pytest.mark.parametrize("error", [RoleRefused("p0 cannot: because"), Draining("p0 is draining")])
async def test_what_the_pod_says_against_it_is_told(start: StartRouter, error: RoleRefused | Draining) -> None:
    p0, d0, d1, p1 = quartet()
    p0.role_refusal = error
    async with start(p0, d0, d1, p1, operator_key=KEY) as router:
        answer = await ask(router, "p0", "decode")
        assert (answer.status_code, answer.json()["error"]["message"]) == (409, error.message)


async def test_a_pod_that_never_comes_back_is_named(start: StartRouter) -> None:
    p0, d0, d1, p1 = quartet()
    async with start(p0, d0, d1, p1, operator_key=KEY, role_change_wait_s=0.2) as router:
        answer = await ask(router, "p0", "decode")
        assert (answer.status_code, answer.json()["incarnation"]) == (202, None)
    p0, d0, d1, p1 = quartet()
    async with start(p0, d0, d1, p1, operator_key=KEY) as router:
        asking = asyncio.create_task(ask(router, "d1", "prefill"))
        await d1.until(lambda: d1.orders)
        await d1.die()
        assert (await asking).status_code in (202, 503)


@pytest.mark.parametrize("end", ["it is back", "it is gone", "it never ends"])
async def test_while_a_pod_drains_no_other_changes_though_its_order_is_answered(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(role_changes, "LEASE_S", 1)
    monkeypatch.setattr(role_changes, "RENEW_S", 0.2)
    monkeypatch.setattr(role_changes, "GONE_S", 1.0)
    monkeypatch.setattr(role_changes, "HOLD_S", 3.0 if end == "it never ends" else 3600.0)
    p0, d0, d1, p1 = quartet()
    settings = {"operator_key": KEY, "role_change_wait_s": 0.1}
    async with start(p0, d0, d1, p1, **settings) as router, start(cluster=router.cluster, sees=4, **settings) as other:
        asking = asyncio.create_task(ask(router, "d1", "prefill"))
        await d1.until(lambda: d1.orders)
        d1.load = Load(draining=True)
        answer = await asking
        assert (answer.status_code, answer.json()["incarnation"]) == (202, None)
        await asyncio.sleep(1.5)  # the lease would be over by itself
        for each in (router, other):
            refused = await ask(each, "p1", "decode")
            assert refused.status_code == 409
            assert "another pod changes" in refused.json()["error"]["message"]
        assert p1.orders == []
        old = d1.registration
        if end == "it is back":
            d1.load = Load()
            await obeyed(router, d1)
        if end != "it never ends":
            await router.registry.unregister(old)
        if end == "it is gone":
            await d1.die()

        async def is_free() -> bool:
            return (await ask(other, "p1", "decode")).status_code == 202

        await eventually(is_free)
        assert p1.orders == [Role.DECODE]


@pytest.mark.parametrize("end", ["it takes the order", "it refuses", "it is gone"])
async def test_while_nobody_knows_whether_a_pod_took_its_order_no_other_changes(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Two pods that decode would both become prefill pods, and none be left."""
    for name, value in (("LEASE_S", 1), ("RENEW_S", 0.2), ("GONE_S", 1.0), ("ANSWER_S", 0.2)):
        monkeypatch.setattr(role_changes, name, value)
    plain, held = FakePod._receive, list[tuple[FakePod, Link, LinkMessage]]()

    def receive(pod: FakePod, link: Link, message: LinkMessage) -> None:
        if isinstance(message, ChangeRole) and pod.pod_id == "d1":
            held.append((pod, link, message))
        else:
            plain(pod, link, message)

    monkeypatch.setattr(FakePod, "_receive", receive)
    p0, d0, d1, p1 = quartet()
    async with start(p0, d0, d1, p1, operator_key=KEY, role_change_wait_s=0.2) as router:
        answer = await ask(router, "d1", "prefill")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "d1 did not answer within 0.2 s")
        await asyncio.sleep(1.5)  # the lease would be over by itself
        refused = await ask(router, "d0", "prefill")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "role_refused")
        d1.role_refusal = RoleRefused("no") if end == "it refuses" else None
        if end == "it is gone":
            await router.registry.unregister(d1.registration)
            await d1.die()
        else:
            plain(*held[0])
        if end == "it takes the order":
            await obeyed(router, d1)

        async def is_free() -> bool:
            return (await ask(router, "p1", "decode")).status_code == 202

        await eventually(is_free)
        assert d0.orders == []


async def test_a_pod_that_comes_back_as_it_was_ended_while_it_changed(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    p0, d0, d1, p1 = quartet()
    async with start(p0, d0, d1, p1, operator_key=KEY) as router:
        asking = asyncio.create_task(ask(router, "d1", "prefill"))
        await d1.until(lambda: d1.orders)
        old = d1.registration
        d1.come_back(Role.DECODE)  # killed, and started anew by whoever watches it
        await router.registry.register(d1.registration)
        await router.registry.unregister(old)
        answer = await asking
        assert answer.status_code == 503
        assert "came back as a decode pod" in answer.json()["error"]["message"]
        asking = asyncio.create_task(ask(router, "p1", "decode"))
        await p1.until(lambda: p1.orders)
        await obeyed(router, p1)
        assert (await asking).status_code == 202


async def test_without_redis_no_pod_changes(start: StartRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = trio()
    async with start(*pods, operator_key=KEY) as router:

        async def away(self: Leases, name: str, holder: str, ttl_s: int) -> bool:
            raise ConnectionError("Redis is away")

        monkeypatch.setattr(Leases, "claim", away)
        answer = await ask(router, "d1", "prefill")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert "Redis" in answer.json()["error"]["message"]
    assert all(pod.orders == [] for pod in pods)


async def test_what_was_held_against_a_pod_does_not_follow_it_into_another_role(start: StartRouter) -> None:
    p0, d0, d1 = trio()
    d1.refusal = PodLost("d1 is not well")
    many = {"policy": "round_robin", "breaker_failures": 2, "eject_s": 600.0, "operator_key": KEY}
    async with start(p0, d0, d1, **many) as router:

        async def decoding() -> int:
            pods: dict[str, int] = (await router.http.get("/health")).json()["pods"]
            return pods["decode"]

        while len(d1.submits) < 2:
            assert (await router.complete()).status_code == 200
        assert await decoding() == 1  # it is kept out
        d1.refusal = None
        for role in ("prefill", "decode"):
            d1.orders.clear()
            asking = asyncio.create_task(ask(router, "d1", role))
            await obeyed(router, d1)
            answer = await asking
            # "Seen" is usable: it is not kept out as what it has become.
            assert (answer.status_code, answer.json()["incarnation"]) == (202, d1.incarnation), answer.text
        assert await decoding() == 2
        before = len(d1.submits)
        for _ in range(4):
            assert (await router.complete()).status_code == 200
        assert len(d1.submits) > before


QUICK = {"rebalance": "on", "rebalance_hold_s": 0.5, "rebalance_cooldown_s": 1.0}


async def test_one_of_two_routers_has_a_pod_follow_the_load(start: StartRouter) -> None:
    p0, d0, d1 = trio()
    p0.load = Load(waiting_tokens=10_000, prefill_s_per_token=0.001)
    async with start(p0, d0, d1, **QUICK) as router, start(**QUICK, cluster=router.cluster, sees=3):
        async with asyncio.timeout(60):
            while not (d0.orders or d1.orders):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        changed = d0 if d0.orders else d1
        await obeyed(router, changed)
        await asyncio.sleep(3)  # time for another change, were there any: the last decode pod stays
        assert [d0.orders, d1.orders].count([]) == 1
        assert changed.orders == [Role.PREFILL]
        assert p0.orders == []
        await eventually(lambda: router._has(3))


async def test_pods_of_the_next_version_keep_no_pod_from_following_the_load(start: StartRouter) -> None:
    p0, d0, d1 = trio()
    p0.load = Load(waiting_tokens=10_000, prefill_s_per_token=0.001)
    waiting = FakePod("p1", role=Role.PREFILL, serves=fingerprint(block_size=32))
    async with start(p0, d0, d1, misfits=(waiting,), **QUICK) as router:

        async def is_refused() -> bool:
            return "p1" in (await router.http.get("/health")).json()["refused"]

        await eventually(is_refused)
        async with asyncio.timeout(10):
            while not (d0.orders or d1.orders):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert waiting.orders == []


async def test_models_without_names_are_balanced_each_whatever_their_folders_are_called(
    start: StartRouter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = [tmp_path / where / "tokenizer" for where in ("chat", "code", "chat elsewhere")]
    for folder in folders:
        folder.mkdir(parents=True)
        byte_tokenizer.save(folder, with_bos="code" in str(folder))
    claims: list[str] = []

    async def claim(self: Leases, name: str, holder: str, ttl_s: int) -> bool:
        claims.append(name)
        return False

    monkeypatch.setattr(Leases, "claim", claim)

    async def leases_of(*models: Path) -> set[str]:
        claims.clear()
        async with start(model=tuple(map(str, models)), rebalance="on"):
            async with asyncio.timeout(60):
                while len(claims) < 2 * len(models):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return set(claims)

    both = await leases_of(folders[0], folders[1])
    assert len(both) == 2
    assert await leases_of(folders[2]) < both  # of another router, which has it elsewhere
