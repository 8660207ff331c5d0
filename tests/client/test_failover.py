"""Several routers, TLS and keys, with real servers of the real contract. Their answers are scripted; what two routers
make of one seed is proven before a real pod's answers in tests/router."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from scripted_server import Context, Responses, ScriptedServer, one, scripted_server

from pagewire.client import AsyncClient, Client, RetryPolicy, Tls
from pagewire.core.errors import RouterLost
from pagewire.protos import inference_pb2

FAST = RetryPolicy(first_backoff_s=0.001, max_backoff_s=0.001)


@pytest.fixture
def servers() -> Iterator[tuple[tuple[ScriptedServer, str], tuple[ScriptedServer, str]]]:
    with scripted_server() as first, scripted_server() as second:
        yield first, second


Servers = tuple[tuple[ScriptedServer, str], tuple[ScriptedServer, str]]


def dies_after(server: ScriptedServer, *words: str) -> None:
    """Let a server go away once it has sent these words."""

    def script(request: inference_pb2.GenerateRequest, context: Context) -> Responses:
        for word in words:
            yield one(word)
        threading.Thread(target=server.stop).start()
        server.cancelled.wait(30)

    server.script = script


def test_a_router_that_is_not_there_is_passed_over(servers: Servers) -> None:
    (first, one_url), (second, other_url) = servers
    with Client(["127.0.0.1:1", one_url, other_url], retry=FAST) as client:
        assert client.generate("a b").text == "ab"
        assert client.tokenize("hi") == (104, 105)
        assert client.generate("c").text == "c"
    assert (len(first.requests), len(second.requests)) == (2, 0)


async def test_a_router_that_is_not_there_is_passed_over_async(servers: Servers) -> None:
    (first, one_url), _ = servers
    async with AsyncClient(f"127.0.0.1:1,{one_url}", retry=FAST) as client:
        assert await client.tokenize("hi") == (104, 105)
        assert (await client.generate("a b")).text == "ab"
    assert len(first.requests) == 1


def test_an_answer_goes_on_at_another_router(servers: Servers) -> None:
    (first, one_url), (second, other_url) = servers
    dies_after(first, "a", "b")
    with Client([one_url, other_url], retry=FAST) as client, client.stream("a b c") as stream:
        assert [chunk.text for chunk in stream] == ["a", "b", "c"]
        assert (stream.result.text, stream.result.token_ids) == ("abc", (7, 7, 7))
    # The seed is the client's, so that both answers are one.
    assert first.requests == second.requests
    assert first.requests[0].sampling.HasField("seed")


async def test_an_answer_goes_on_at_another_router_async(servers: Servers) -> None:
    (first, one_url), (second, other_url) = servers
    dies_after(first, "a")
    async with AsyncClient([one_url, other_url], retry=FAST) as client:
        assert (await client.generate("a b c", seed=5)).text == "abc"
    assert [request.sampling.seed for request in (*first.requests, *second.requests)] == [5, 5]


def test_an_answer_that_would_be_another_one_is_an_error(servers: Servers) -> None:
    (first, one_url), (second, other_url) = servers
    dies_after(first, "x")
    with Client([one_url, other_url], retry=FAST) as client, pytest.raises(RouterLost, match="not the one"):
        client.generate("a b c")
    assert len(second.requests) == 1


def test_without_resuming_the_loss_is_an_error(servers: Servers) -> None:
    (first, one_url), (second, other_url) = servers
    dies_after(first, "a")
    policy = RetryPolicy(resumes=False)
    with Client([one_url, other_url], retry=policy) as client, pytest.raises(RouterLost) as caught:
        client.generate("a b c")
    assert caught.value.request_id == "r1"
    assert second.requests == []


def test_an_api_key_goes_with_each_call(servers: Servers) -> None:
    (first, url), _ = servers
    with Client(url, api_key="k-1") as client:
        client.generate("a")
        client.tokenize("a")
    assert [metadata["authorization"] for metadata in first.metadata] == ["Bearer k-1"] * 2
    for key in ("k-1 ", "k-1\r", "k-ä"):
        with pytest.raises(ValueError, match="API key"):
            Client(url, api_key=key)


@dataclass(frozen=True)
class Papers:
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


def certified(folder: Path, name: str) -> Papers:
    """Make a self-signed certificate for `name`."""
    papers = Papers(folder / f"{name}.pem", folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}", "-out", str(papers.certificate), "-keyout", str(papers.key)]
    subprocess.run(command, check=True, capture_output=True)
    return papers


async def test_tls_proves_both_sides(tmp_path: Path) -> None:
    router, caller = certified(tmp_path, "router.test"), certified(tmp_path, "caller.test")
    credentials = grpc.ssl_server_credentials(
        [(router.key.read_bytes(), router.certificate.read_bytes())], caller.certificate.read_bytes(), True
    )
    with scripted_server(credentials) as (server, address):
        tls = Tls(ca=router.certificate, cert=caller.certificate, key=caller.key, server_name="router.test")
        with Client(f"grpcs://{address}", tls=tls, api_key="k") as client:
            assert client.generate("a b").text == "ab"
        async with AsyncClient(address, tls=tls) as aio:
            assert (await aio.generate("a b")).text == "ab"
        assert server.metadata[0]["authorization"] == "Bearer k"
        once = RetryPolicy(max_attempts=1)
        strangers = (
            Tls(ca=router.certificate, server_name="router.test"),  # no certificate of its own
            Tls(ca=caller.certificate, cert=caller.certificate, key=caller.key, server_name="router.test"),
            Tls(ca=router.certificate, cert=caller.certificate, key=caller.key, server_name="else.test"),
            None,  # in the clear
        )
        for stranger in strangers:
            with Client(address, tls=stranger, retry=once) as client, pytest.raises(RouterLost):
                client.generate("a", timeout_s=10)
    with pytest.raises(ValueError, match="together"):
        Tls(cert="c.pem")
