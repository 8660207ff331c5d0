"""Pages of other origins: what browsers are told before a page calls the API, and with every answer.

By HTTP before a fake pod. That a browser makes of these headers what it should is not tried.
"""

from __future__ import annotations

import secrets
from pathlib import Path

import httpx
import pytest
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter

from pagewire.router.config import RouterConfig
from pagewire.router.keys import KEY_BYTES, NewKey

OURS, OTHERS = "https://chat.example:8443", "https://evil.example"
ASKED = "authorization, content-type, x-stainless-lang"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/models", "/v1/models/fake", "/tokenize", "/health")
EXPOSED = {"x-request-id", "request-id", "retry-after", "x-should-retry"}


def told(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


async def preflight(router: RunningRouter, path: str, origin: str = OURS, **more: str) -> httpx.Response:
    headers = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": ASKED}
    return await router.http.request("OPTIONS", path, headers={**headers, **more})


async def answers(router: RunningRouter, headers: dict[str, str], key: str = "none") -> list[httpx.Response]:
    """Return an answer of each sort: whole, streamed, refused by each layer, of the framework."""
    has_key = {**headers, "authorization": f"Bearer {key}"}
    post, get = router.http.post, router.http.get
    found = [
        await post("/v1/chat/completions", json=CHAT, headers=has_key),
        await post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=has_key),
        await post("/v1/messages", json=CHAT, headers=has_key),
        await post("/v1/chat/completions", json={**CHAT, "temperature": -1}, headers=has_key),
        await post("/v1/chat/completions", content=b"{", headers=has_key),
        await get("/v1/models", headers=has_key),
        await get("/v1/models/nobody", headers=has_key),
        await get("/v1/nowhere", headers=has_key),
        await get("/v1/completions", headers=has_key),
        await post("/tokenize", json={"prompt": "a"}, headers=has_key),
        await get("/health", headers=headers),
    ]
    assert [each.status_code for each in found] == [200, 200, 200, 400, 400, 200, 404, 404, 405, 200, 200]
    assert found[1].text.endswith("data: [DONE]\n\n")
    return found


@pytest.fixture
def key(tmp_path: Path) -> NewKey:
    return NewKey.of(secrets.token_bytes(KEY_BYTES))


@pytest.fixture
def file(tmp_path: Path, key: NewKey) -> str:
    path = tmp_path / "keys.toml"
    path.write_text(f"[tenants.acme]\nkeys = {[key.line]}\n")
    return str(path)


async def test_every_answer_may_be_read_by_the_origins_that_are_named(
    start: StartRouter, file: str, key: NewKey
) -> None:
    origins = (OURS, "http://[::1]:3000")
    bearer = {"authorization": f"Bearer {key.key}"}
    async with start(FakePod("c0"), api_keys=file, open_metrics=True, headers=bearer, allow_origin=origins) as router:
        for origin in origins:
            found = await answers(router, {"origin": origin}, key.key)
            refused = await router.http.get("/v1/models", headers={"origin": origin, "authorization": "Bearer x"})
            assert refused.status_code == 401
            for each in [*found, refused]:
                names = told(each)
                assert names.pop("access-control-allow-origin") == origin, each.request.url
                assert set(names.pop("access-control-expose-headers").split(", ")) == EXPOSED
                assert (names, each.headers["vary"]) == ({}, "origin")
        # What others are told is none of it, but that a cache must not keep it for ours.
        for headers in ({"origin": OTHERS}, {"origin": OURS.upper()}, {"origin": "null"}, {"origin": "*"}, {}):
            for each in await answers(router, headers, key.key):
                assert (told(each), each.headers["vary"]) == ({}, "origin"), each.request.url


async def test_a_preflight_is_answered_without_a_key(start: StartRouter, file: str, key: NewKey) -> None:
    bearer = {"authorization": f"Bearer {key.key}"}
    async with start(FakePod("c0"), api_keys=file, open_metrics=True, headers=bearer, allow_origin=(OURS,)) as router:
        for path in PATHS:
            answer = await preflight(router, path, authorization="", **{"x-request-id": "mine"})
            assert (answer.status_code, answer.content) == (204, b"")
            assert answer.headers["x-request-id"] == "mine"
            names = told(answer)
            assert (names["access-control-allow-origin"], names["access-control-allow-headers"]) == (OURS, ASKED)
            assert names["access-control-allow-methods"] == "GET, POST"
            assert int(names["access-control-max-age"]) > 0
            assert set(answer.headers["vary"].split(", ")) == {"origin", "access-control-request-headers"}
            assert "access-control-allow-credentials" not in names
            other = await preflight(router, path, OTHERS, authorization="")
            assert (other.status_code, told(other)) == (204, {})
        assert await router.metric("pagewire_router_requests_total") == 0  # none was refused for want of a key
        # What no browser asks so is a request like any.
        for headers in ({"origin": OURS}, {"access-control-request-method": "POST"}):
            answer = await router.http.request("OPTIONS", "/v1/models", headers={**headers, "authorization": "x"})
            assert answer.status_code == 401


async def test_any_origin_may_be_let_in(start: StartRouter) -> None:
    async with start(FakePod("c0"), allow_origin=("*",)) as router:
        for headers in ({"origin": OTHERS}, {}):
            for each in await answers(router, headers):
                assert each.headers["access-control-allow-origin"] == "*"
                assert "vary" not in each.headers
        answer = await preflight(router, "/v1/chat/completions", OTHERS)
        assert told(answer)["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


async def test_what_is_not_the_api_is_for_its_own_origin_alone(start: StartRouter) -> None:
    async with start(FakePod("c0"), allow_origin=("*",)) as router:
        for path in ("/metrics", "/ui", "/pods/c0/role"):
            for each in (await router.http.get(path, headers={"origin": OURS}), await preflight(router, path)):
                assert told(each) == {}, path


async def test_without_the_setting_nothing_is_told(start: StartRouter) -> None:
    async with start(FakePod("c0")) as router:
        for each in await answers(router, {"origin": OURS}):
            assert told(each) == {}
            assert "vary" not in each.headers
        answer = await preflight(router, "/v1/chat/completions")
        assert (answer.status_code, told(answer)) == (405, {})


@pytest.mark.parametrize(
    "origins",
    [
        ("https://a/",), ("https://a/b",), ("a.example",), ("null",), ("",), ("https://",), ("https://a,https://b",),
        ("https://a b",), ("HTTPS://a",), ("https://a\r\nx: y",), ("https://me@a",), ("https://é",), ("*", "https://a"),
        ("https://a", "*"),
    ],
)  # fmt: skip
def test_what_is_no_origin_is_refused_at_start(origins: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="allow_origin"):
        RouterConfig(model=("m",), cluster_secret="s", allow_origin=origins)


def test_origins_as_browsers_say_them_are_taken() -> None:
    origins = ("https://a.example", "http://localhost:3000", "http://[::1]:1", "capacitor://localhost")
    assert RouterConfig(model=("m",), cluster_secret="s", allow_origin=origins).allow_origin == origins
