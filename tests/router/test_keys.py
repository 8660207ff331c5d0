"""API keys: what a key file may hold, whose a key is, and that nobody comes in by either door without one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import secrets
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake_pod import FakePod
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st
from router_rig import RunningRouter, StartRouter, eventually

from pagewire.client.aio import AsyncClient
from pagewire.core.block_hash import root_hash, tenant_salt
from pagewire.core.errors import Forbidden, Unauthenticated
from pagewire.protos import inference_pb2 as pb
from pagewire.router.authenticator import Authenticator
from pagewire.router.keys import KEY_BYTES, MAX_KEY_CHARS, NewKey, read
from pagewire.router.tenants import Tenant

SECRET = b"the cluster's"
LINE = "0" * 8 + ":" + "0" * 64


def a_key() -> NewKey:
    return NewKey.of(secrets.token_bytes(KEY_BYTES))


def file_of(**keys: Sequence[NewKey]) -> str:
    return "\n".join(f"[tenants.{name}]\nkeys = {[key.line for key in own]}" for name, own in keys.items())


def bearer(key: NewKey | str) -> dict[str, str]:
    return {"authorization": f"Bearer {key if isinstance(key, str) else key.key}"}


def test_a_key_is_its_tenants_and_nobody_elses() -> None:
    ours, spare, theirs, unknown = (a_key() for _ in range(4))
    text = file_of(acme=[ours, spare], other=[theirs])
    ring = read(text, secret=SECRET)
    assert len(ring) == 3
    found = [ring.tenant(key.key) for key in (ours, spare, theirs)]
    assert [tenant.name for tenant in found if tenant is not None] == ["acme", "acme", "other"]
    assert ring.tenant(unknown.key) is None
    assert all(key.key not in text for key in (ours, spare, theirs))


@given(st.integers(0, 200), st.characters())
def test_a_key_with_another_character_is_nobodys(place: int, character: str) -> None:
    key = a_key()
    ring = read(file_of(acme=[key]), secret=SECRET)
    place %= len(key.key)
    changed = key.key[:place] + character + key.key[place + 1 :]
    assert (ring.tenant(changed) is None) == (changed != key.key)
    for odd in ("", key.key[:-1], key.key + character, key.key * 9, key.line, key.line.partition(":")[2]):
        assert ring.tenant(odd) is None


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | bytes, str | bytes]]:
    """Return what is compared in a time that does not tell how much of it was right, as it comes."""
    pairs: list[tuple[str | bytes, str | bytes]] = []
    compare = hmac.compare_digest

    def listening(one: Any, other: Any) -> bool:
        pairs.append((one, other))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", listening)
    return pairs


def test_hashes_are_compared_in_a_time_that_does_not_tell(compared: list[tuple[str, str]]) -> None:
    """Every hash under the id, right or wrong, the first of them or the last, and whole ones of one length."""
    keys = [NewKey.of(b"same" + bytes([number]) * 32) for number in range(4)]
    known = [key.line.partition(":")[2] for key in keys]
    ring = read(file_of(a=keys[:2], b=keys[2:3]), secret=SECRET)
    for key, digest in zip(keys, known, strict=True):
        compared.clear()
        assert (ring.tenant(key.key) is None) == (key is keys[3])
        assert compared == [(each, digest) for each in known[:3]]
        assert {len(each) for pair in compared for each in pair} == {64}


def test_the_operators_key_is_compared_in_a_time_that_does_not_tell(compared: list[tuple[bytes, bytes]]) -> None:
    door = Authenticator(None, secret=SECRET, operator_key="hush")
    for key, is_operator in (("hush", True), ("husk", False), ("", False), ("hush hush", False)):
        compared.clear()
        assert door.tenant(f"Bearer {key}").is_operator == is_operator
        assert compared == [(key.encode(), b"hush")]


def test_keys_that_share_an_id_are_told_apart() -> None:
    keys = {name: NewKey.of(b"same" + name.encode() * 32) for name in "abc"}
    assert len({key.line.partition(":")[0] for key in keys.values()}) == 1
    ring = read(file_of(a=[keys["a"]], b=[keys["b"]]), secret=SECRET)
    found = [ring.tenant(key.key) for key in keys.values()]
    assert [tenant and tenant.name for tenant in found] == ["a", "b", None]


def test_a_salt_is_stable_and_each_tenants_own() -> None:
    a, b = a_key(), a_key()
    first, again = (read(file_of(a=[a], b=[b]), secret=SECRET) for _ in range(2))
    elsewhere = read(file_of(a=[a]), secret=b"another cluster's")
    salts = []
    for ring in (first, again, elsewhere):
        tenant = ring.tenant(a.key)
        assert tenant is not None
        salts.append(tenant.salt)
    assert salts[0] == salts[1] == tenant_salt("a", SECRET) != salts[2]
    other = first.tenant(b.key)
    assert other is not None
    assert other.salt != salts[0]


def test_limits_are_read() -> None:
    key = a_key()
    limits = ("max_concurrent = 3", "tokens_per_s = 20", "burst_tokens = 400", 'salt = "s"', "cache_quota = 0.25")
    text = "\n".join((file_of(a=[key]), *limits))
    tenant = read(text, secret=SECRET).tenant(key.key)
    assert tenant is not None
    assert (tenant.max_concurrent, tenant.tokens_per_s, tenant.burst_tokens, tenant.salt) == (3, 20.0, 400, "s")
    assert tenant.cache_quota is not None
    assert tenant.cache_quota.share == 0.25


def test_who_is_given_no_limit_has_none() -> None:
    key = a_key()
    assert read(file_of(a=[key]), secret=SECRET).tenant(key.key) == Tenant(
        name="a", salt=tenant_salt("a", SECRET), priority=0
    )
    assert len(read("", secret=SECRET)) == 0
    assert len(read("[tenants.a]", secret=SECRET)) == 0


@pytest.mark.parametrize(
    ("name", "line", "field", "value"),
    [
        ("a", "cache_quota = 1", "cache_share", 1.0),
        ("a", "cache_quota = 0", "cache_share", 0.0),
        ("a", "tokens_per_s = 0.5", "tokens_per_s", 0.5),
        ("a", "tokens_per_s = 1e300", "tokens_per_s", 1e300),
        ("a", "max_concurrent = 1", "max_concurrent", 1),
        ("a", "priority = -100", "priority", -100),
        ("a", "priority = 100", "priority", 100),
        ("a", "operator = true", "is_operator", True),
        ("a", "operator = false", "is_operator", False),
        ("a", "salt = 's'", "salt", "s"),
        ("a", f"salt = '{'s' * 1024}'", "salt", "s" * 1024),
        ("A.b_c-9", "", "name", "A.b_c-9"),
        ("n" * 64, "", "name", "n" * 64),
    ],
)
def test_what_a_tenant_is_given_it_has_up_to_the_bounds(name: str, line: str, field: str, value: object) -> None:
    key = a_key()
    tenant = read(f"[tenants.'{name}']\nkeys = ['{key.line}']\n{line}", secret=SECRET).tenant(key.key)
    assert getattr(tenant, field) == value


def test_a_key_is_an_id_and_a_secret_and_its_line_the_id_and_a_hash() -> None:
    drawn = bytes(range(KEY_BYTES))
    made = NewKey.of(drawn)
    assert KEY_BYTES == 36
    assert made.key == "pw_00010203_" + base64.urlsafe_b64encode(drawn[4:]).decode().rstrip("=")
    told = hashlib.blake2b(made.key.encode(), digest_size=32, person=b"pagewire-api-key").hexdigest()
    assert made.line == f"00010203:{told}", "files of keys outlive routers"
    for wrong in (b"", drawn[:-1], drawn + b"x"):
        with pytest.raises(ValueError, match=f"36 random bytes, not {len(wrong)}"):
            NewKey.of(wrong)


def test_what_is_longer_than_any_key_is_not_even_hashed(compared: list[tuple[str, str]]) -> None:
    key = a_key()
    ring = read(file_of(acme=[key]), secret=SECRET)
    assert ring.tenant(key.key + "x" * (MAX_KEY_CHARS - len(key.key))) is None
    assert len(compared) == 1
    assert ring.tenant(key.key + "x" * (MAX_KEY_CHARS - len(key.key) + 1)) is None
    assert len(compared) == 1


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tenants = 3", "table"),
        ("[tenant.a]", "tenants alone"),
        ("[tenants]\na = 1", "tenant a is a table"),
        ("[tenants.'a b']", "name"),
        ("[tenants.'']", "name"),
        (f"[tenants.{'a' * 65}]", "1 to 64 letters"),
        ("[tenants.a]\nkey = []", "no key"),
        ("[tenants.a]\nkeys = 'x'", "keys of tenant a"),
        ("[tenants.a]\nkeys = ['pw_hush']", "keys of tenant a"),
        (f"[tenants.a]\nkeys = ['{LINE}', 'pw_hush']", "keys of tenant a"),
        (f"[tenants.a]\nkeys = ['{LINE}', 5]", "keys of tenant a"),
        (f"[tenants.a]\nkeys = {{ '{LINE}' = 1 }}", "keys of tenant a"),
        ("[tenants.a]\nmax_concurrent = -1", "max_concurrent"),
        ("[tenants.a]\nmax_concurrent = true", "max_concurrent"),
        ("[tenants.a]\nmax_concurrent = 1.5", "max_concurrent of tenant a is a number, not negative, 0 for no limit"),
        ("[tenants.a]\nburst_tokens = 1.5", "burst_tokens"),
        ("[tenants.a]\nburst_tokens = -1", "burst_tokens"),
        ("[tenants.a]\nburst_tokens = 9", "burst_tokens of tenant a limits nothing without tokens_per_s"),
        ("[tenants.a]\nburst_tokens = 9\ntokens_per_s = 0.0", "limits nothing without tokens_per_s"),
        ("[tenants.a]\ntokens_per_s = -0.5", "tokens_per_s"),
        ("[tenants.a]\ntokens_per_s = inf", "tokens_per_s"),
        ("[tenants.a]\ntokens_per_s = nan", "tokens_per_s"),
        ("[tenants.a]\ncache_quota = 1.5", "cache_quota of tenant a is a number, not negative and at most 1"),
        ("[tenants.a]\ncache_quota = -0.1", "cache_quota"),
        ("[tenants.a]\ncache_quota = nan", "cache_quota"),
        ("[tenants.a]\npriority = -101", "priority of tenant a is a whole number between -100 and 100"),
        ("[tenants.a]\npriority = 101", "priority"),
        ("[tenants.a]\npriority = 1.5", "priority"),
        ("[tenants.a]\npriority = true", "priority"),
        ("[tenants.a]\noperator = 1", "operator of tenant a"),
        ("[tenants.a]\nsalt = ''", "salt"),
        ("[tenants.a]\nsalt = 5", "salt of tenant a is a text of 1 to 1024 characters"),
        (f"[tenants.a]\nsalt = '{'s' * 1025}'", "salt of tenant a"),
        ("[tenants.a]\nsalt = 'hush'\n[tenants.b]\nsalt = 'hush'", "salt of tenant b"),
        (f"[tenants.a]\nkeys = ['{LINE}']\n[tenants.b]\nkeys = ['{LINE}']", "key of tenant b"),
        ("hush = ", "TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as refused:
        read(text, secret=SECRET)
    assert "hush" not in str(refused.value)


def test_a_file_that_names_no_key_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("")
    door = Authenticator(file, secret=SECRET)
    for header in (None, "", "Bearer ", "Bearer", "Bearer pw__", "Basic x", f"Bearer {a_key().key}"):
        with pytest.raises(Unauthenticated):
            door.tenant(header)
    assert Authenticator(None, secret=SECRET).tenant("Bearer whatever").name == "anonymous"


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_salt_and_tenant_are_never_mixed_up(salt: str, tenant: str, other_salt: str, other_tenant: str) -> None:
    def root(salt: str, tenant: str) -> bytes:
        return root_hash(model_digest="m", kv_fingerprint="k", salt=salt, tenant=tenant)

    same = (salt, tenant) == (other_salt, other_tenant)
    assert (root(salt, tenant) == root(other_salt, other_tenant)) == same
    assert root(salt, "") == root_hash(model_digest="m", kv_fingerprint="k", salt=salt)


# ------------------------------------------------------------------------------------------------------- both doors


@pytest.fixture
def keys() -> dict[str, NewKey]:
    return {name: a_key() for name in ("acme", "other", "late")}


@pytest.fixture
def file(tmp_path: Path, keys: dict[str, NewKey]) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(file_of(acme=[keys["acme"]], other=[keys["other"]]))
    return path


def rewrite(file: Path, text: str) -> None:
    file.write_text(text)


async def generate(
    router: RunningRouter, metadata: dict[str, str], **fields: str
) -> AsyncIterator[pb.GenerateResponse]:
    request = pb.GenerateRequest(text="hello world", **fields)  # type: ignore[arg-type]
    async for answer in router.rpc.Generate(request, metadata=tuple(metadata.items())):
        yield answer


async def test_neither_door_opens_without_a_key(start: StartRouter, file: Path, keys: dict[str, NewKey]) -> None:
    pod = FakePod("c0")
    async with start(pod, api_keys=str(file), open_metrics=True) as router:
        wrong: tuple[dict[str, str], ...] = (
            bearer(a_key()),
            bearer(keys["acme"].line),
            {"authorization": keys["acme"].key},
            {},
        )
        paths = (
            "/v1/models", "/v1/models/fake", "/nowhere", "/health/", "/healthy", "/live/x", "/pods", "/pods/c0",
            "/pods/c0/role/", "/pods/c0/x/role",
        )  # fmt: skip
        for headers in wrong:
            for response in (
                await router.http.post("/v1/completions", json={"prompt": "hello"}, headers=headers),
                await router.http.post("/v1/chat/completions", content=b"x" * 100_000, headers=headers),
                *[await router.http.get(path, headers=headers) for path in paths],
            ):
                assert response.status_code == 401, response.request.url
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert response.headers["x-request-id"]
                error = response.json()["error"]
                assert (error["type"], error["code"]) == ("authentication_error", Unauthenticated.cause)
            for call in (
                generate(router, headers).__anext__(),
                router.rpc.GetModelInfo(pb.GetModelInfoRequest(), metadata=tuple(headers.items())),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert pod.submits == []
        for path in ("/health", "/live", "/ready", "/metrics"):
            assert (await router.http.get(path)).status_code == 200
        async with grpc.aio.insecure_channel(router.addresses["grpc"]) as channel:
            health = health_pb2_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == 1
        assert await router.metric("pagewire_router_requests_total") == len(wrong) * (2 + len(paths) + 2)
        # With one, both open.
        response = await router.complete()
        assert response.status_code == 401
        router.http.headers.update(bearer(keys["acme"]))
        assert (await router.complete()).status_code == 200
        assert len([each async for each in generate(router, bearer(keys["acme"]))]) > 1
        async with AsyncClient(router.addresses["grpc"], api_key=keys["acme"].key) as client:
            assert (await client.generate("hello world", max_tokens=4)).text
        assert len(pod.submits) == 3


async def test_metrics_need_a_key_unless_told_otherwise(
    start: StartRouter, file: Path, keys: dict[str, NewKey]
) -> None:
    async with start(api_keys=str(file), headers=bearer(keys["acme"])) as router:
        assert (await router.http.get("/metrics")).status_code == 200
        router.http.headers.clear()
        assert (await router.http.get("/metrics")).status_code == 401


async def test_two_tenants_never_share_a_prefix(start: StartRouter, file: Path, keys: dict[str, NewKey]) -> None:
    pod = FakePod("c0")
    async with start(pod, api_keys=str(file), headers=bearer(keys["acme"])) as router:
        for name in ("acme", "other"):
            for salt in (None, "s"):
                body = {"prompt": "hello world", "max_tokens": 2, **({"cache_salt": salt} if salt else {})}
                for _ in range(2):
                    answer = await router.http.post("/v1/completions", json=body, headers=bearer(keys[name]))
                    assert answer.status_code == 200
                fields = {"cache_salt": salt} if salt else {}
                async for _ in generate(router, bearer(keys[name]), **fields):
                    pass
        roots = [submit.spec.root for submit in pod.submits]
        assert [len(set(roots[i : i + 3])) for i in range(0, 12, 3)] == [1, 1, 1, 1]
        assert len(set(roots)) == 4


async def test_a_tenants_quota_goes_with_its_requests_under_no_name(
    start: StartRouter, file: Path, keys: dict[str, NewKey]
) -> None:
    pod = FakePod("c0")
    rewrite(file, file_of(other=[keys["other"]], acme=[keys["acme"]]) + "\ncache_quota = 0.25")
    async with start(pod, api_keys=str(file), headers=bearer(keys["acme"])) as router:
        for name in ("acme", "other", "acme"):
            body = {"prompt": "hello world", "max_tokens": 2, "cache_salt": "any"}
            answer = await router.http.post("/v1/completions", json=body, headers=bearer(keys[name]))
            assert answer.status_code == 200
        first, none, again = (submit.spec.cache_quota for submit in pod.submits)
        assert first is not None
        assert (first == again, first.share, none) == (True, 0.25, None)
        assert b"acme" not in first.tag
        assert first.tag not in tenant_salt("acme", SECRET).encode()


@pytest.mark.parametrize("way", ["tenant", "operator_key"])
async def test_what_others_do_is_shown_to_operators_alone(
    start: StartRouter, file: Path, keys: dict[str, NewKey], way: str
) -> None:
    secret = "an-operators-key"
    settings = {} if way == "tenant" else {"operator_key": secret}
    if way == "tenant":
        rewrite(file, file_of(other=[keys["other"]], acme=[keys["acme"]]) + "\noperator = true")
    theirs = bearer(keys["acme"]) if way == "tenant" else bearer(secret)
    async with start(FakePod("c0"), api_keys=str(file), headers=bearer(keys["other"]), **settings) as router:
        for headers, status in (
            (bearer(keys["other"]), grpc.StatusCode.PERMISSION_DENIED),
            (bearer(secret + "x"), grpc.StatusCode.UNAUTHENTICATED),
            ({}, grpc.StatusCode.UNAUTHENTICATED),
        ):
            metadata = tuple(headers.items())
            for call in (
                router.rpc.GetLoads(pb.GetLoadsRequest(), metadata=metadata),
                router.rpc.SubscribeKvEvents(pb.SubscribeKvEventsRequest(), metadata=metadata).read(),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call
                assert refused.value.code() is status
        explain = {"x-pagewire-explain": "1"}
        body = {"model": "fake", "prompt": "hello", "max_tokens": 1}
        refused_by_http = await router.http.post("/v1/completions", json=body, headers=explain)
        assert (refused_by_http.status_code, refused_by_http.json()["error"]["code"]) == (403, "forbidden")
        explained = await router.http.post("/v1/completions", json=body, headers={**explain, **theirs})
        assert explained.json()["pagewire"]["explanation"]["candidates"]
        url, key = router.addresses["grpc"], theirs["authorization"].partition(" ")[2]
        async with AsyncClient(url, api_key=key) as client:
            assert (await client.generate("hello", max_tokens=1, explain=True)).explanation is not None
            assert [pod.pod_id for pod in await client.loads()] == ["c0"]
            async with client.kv_events() as events:
                assert (await anext(aiter(events))).pod_id == "c0"
            assert (await client.generate("hello", max_tokens=2)).token_ids  # an operator may what everybody may
        async with AsyncClient(url, api_key=keys["other"].key) as client:
            with pytest.raises(Forbidden, match="operator"):
                await client.loads()
            with pytest.raises(Forbidden, match="operator"):
                await client.generate("hello", max_tokens=1, explain=True)


@pytest.mark.parametrize("key", ["schl\u00fcssel", "ends\n", " begins"])
def test_a_key_that_no_header_could_show_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ValueError, match="operator_key") as refused:
        Authenticator(None, secret=b"s", operator_key=key)
    assert key.strip() not in str(refused.value)


async def test_without_keys_everybody_sees_all(start: StartRouter) -> None:
    async with start(FakePod("c0"), operator_key="an operator's key") as router:
        assert len((await router.rpc.GetLoads(pb.GetLoadsRequest())).pods) == 1


async def test_new_keys_count_while_old_requests_run(start: StartRouter, file: Path, keys: dict[str, NewKey]) -> None:
    pod = FakePod("c0")
    pod.hold_at = 2
    async with start(pod, api_keys=str(file), headers=bearer(keys["acme"])) as router:
        running = asyncio.create_task(router.complete(max_tokens=4))
        await pod.until(lambda: pod.running == 1)
        rewrite(file, "this is no key file")
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        assert (await router.http.get("/v1/models")).status_code == 200  # the keys from before stay
        rewrite(file, file_of(late=[keys["late"]]))
        os.kill(os.getpid(), signal.SIGHUP)

        async def changed() -> bool:
            answers = [await router.http.get("/v1/models", headers=bearer(keys[name])) for name in ("acme", "late")]
            return [answer.status_code for answer in answers] == [401, 200]

        await eventually(changed)
        pod.release()
        assert (await running).status_code == 200
        # The file is looked at by itself as well.
        rewrite(file, file_of(acme=[keys["acme"]], late=[keys["late"]]))

        async def back() -> bool:
            return (await router.http.get("/v1/models", headers=bearer(keys["acme"]))).status_code == 200

        await eventually(back)
