"""A whole router over TLS: its two doors, its links to pods, and who is kept out of each."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import byte_tokenizer
import grpc
import httpx
import pytest
from certificates import Certificates
from fake_pod import FakePod
from router_rig import RunningRouter, StartRouter, client_context, events, eventually

from pagewire.cli import role, talk
from pagewire.client.aio import AsyncClient
from pagewire.client.security import Tls as ClientTls
from pagewire.core.errors import RoleRefused, Unavailable
from pagewire.core.messages import Role
from pagewire.protos import inference_pb2 as pb
from pagewire.protos.inference_pb2_grpc import InferenceStub
from pagewire.router.config import RouterConfig
from pagewire.router.http_server import CLOSE_S
from pagewire.serving.tls import Tls, Wire
from pagewire.slo.load.run import Server

TOKENIZER = byte_tokenizer.build()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def settings(certificates: Certificates) -> dict[str, Any]:
    """A router whose callers and pods all show certificates of ours."""
    names = {"tls_cert": "router.pem", "tls_key": "router.key", "tls_ca": "ca.pem", "tls_client_ca": "ca.pem"}
    return {setting: str(certificates.path(file)) for setting, file in names.items()}


def over_tls(certificates: Certificates, pod_id: str = "c0", **shown: Any) -> FakePod:
    pod = FakePod(pod_id)
    pod.wire = Wire(certificates.tls(**{"name": "pod", **shown}))
    return pod


async def test_both_doors_and_the_link_open_to_the_right_certificate(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any]
) -> None:
    ours = certificates.tls("client")
    pod = over_tls(certificates)
    async with start(pod, tls=ours, **settings) as router:
        assert router.addresses["http"].startswith("https://")
        whole = await router.complete(return_token_ids=True)
        assert whole.json()["choices"][0]["token_ids"] == (TOKENIZER.encode("hello world").ids * 8)[:8]
        assert len(events((await router.complete(stream=True)).text)) > 1
        answers = [each async for each in router.rpc.Generate(pb.GenerateRequest(text="hello world"))]
        assert answers[-1].HasField("complete")
        tls = ClientTls(ca=ours.ca, cert=ours.cert, key=ours.key)
        async with AsyncClient(router.addresses["grpc"], tls=tls) as client:
            assert (await client.generate("hello world", max_tokens=4)).text
        assert len(pod.submits) == 4


async def test_commands_show_a_certificate_where_the_router_asks(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any]
) -> None:
    ours = certificates.tls("client")
    files = {"tls_ca": ours.ca, "tls_cert": ours.cert, "tls_key": ours.key}
    async with start(over_tls(certificates), tls=ours, operator_key="op", **settings) as router:

        def completed() -> int:
            with talk.client_of(router.addresses["grpc"], api_key="", **files) as client:
                return len(client.generate("hello world", max_tokens=3).token_ids)

        def changed(**shown: Path | None) -> None:
            role.run(router.addresses["http"], "c0", Role.PREFILL, "op", **shown)

        assert await asyncio.to_thread(completed) == 3
        with pytest.raises(RoleRefused, match="last pod that decodes"):  # so it was asked
            await asyncio.to_thread(changed, **files)
        for shown in ({}, {"tls_ca": ours.ca}):
            with pytest.raises(Unavailable):
                await asyncio.to_thread(changed, **shown)
        with pytest.raises(ValueError, match="together"):
            await asyncio.to_thread(changed, tls_cert=ours.cert)


@pytest.mark.parametrize("door", ["http", "grpc"])
async def test_load_is_played_where_the_router_asks_for_a_certificate(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any], door: str
) -> None:
    ours = certificates.tls("client")
    shown: dict[str, Any] = {"ca": str(ours.ca), "cert": str(ours.cert), "key": str(ours.key)}
    async with start(over_tls(certificates), tls=ours, **settings) as router:
        async with Server(url=router.addresses[door], **shown).target(lambda: 0.0) as target:
            assert target.model == "fake"
        with pytest.raises(Unavailable):
            async with Server(url=router.addresses[door], ca=str(ours.ca)).target(lambda: 0.0):
                pass
        with pytest.raises(ValueError, match="together"):
            Server(url=router.addresses[door], cert=str(ours.cert))


@pytest.mark.parametrize("case", ["strangers", "expired", "none", "in the clear"])
async def test_callers_without_a_certificate_of_ours_are_kept_out(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any], case: str
) -> None:
    believed = certificates.path("ca.pem").read_bytes()
    shown: Tls | None = None
    verify: ssl.SSLContext | bool = True
    if case == "strangers":
        shown = certificates.tls("client", whose="strangers")
    elif case == "expired":
        shown = certificates.tls("expired")
    pod = over_tls(certificates)
    async with start(pod, tls=certificates.tls("client"), **settings) as router:
        url = router.addresses["http"]
        if case == "in the clear":
            url, credentials = url.replace("https:", "http:"), None
        else:
            verify = client_context(shown) if shown else ssl.create_default_context(cadata=believed.decode())
            pair = (shown.key.read_bytes(), shown.cert.read_bytes()) if shown else (None, None)
            credentials = grpc.ssl_channel_credentials(believed, *pair)
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=verify) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/live")
        address = router.addresses["grpc"]
        opened = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)
        async with opened as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest(), timeout=5)  # type: ignore[no-untyped-call]
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await router.complete()).status_code == 200
        assert len(pod.submits) == 1


async def test_callers_do_not_believe_a_router_of_another_authority(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any]
) -> None:
    edge = {"edge_cert": "router.pem", "edge_key": "router.key"}
    strange = {setting: str(certificates.path(file, "strangers")) for setting, file in edge.items()}
    theirs = certificates.tls("client", believes="strangers")
    # The edge may have a certificate of its own, of another authority; pods are met with the cluster's.
    async with start(over_tls(certificates), tls=theirs, **settings, **strange) as router:
        assert (await router.complete()).status_code == 200
        context = client_context(certificates.tls("client"))
        async with httpx.AsyncClient(base_url=router.addresses["http"], trust_env=False, verify=context) as client:
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get("/live")


@pytest.mark.parametrize(
    ("shown", "part"),
    [
        ({"whose": "strangers"}, "local issuer certificate"),
        ({"name": "expired"}, "has expired"),
        ({"name": "elsewhere"}, "Hostname Verification"),
    ],
)
async def test_a_pod_with_the_wrong_certificate_is_never_linked(
    start: StartRouter,
    certificates: Certificates,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    shown: dict[str, str],
    part: str,
) -> None:
    right, wrong, bare = over_tls(certificates), over_tls(certificates, "c1", **shown), FakePod("c2")
    async with start(right, misfits=(wrong, bare), tls=certificates.tls("client"), **settings) as router:

        async def named() -> bool:
            said = [each.getMessage() for each in caplog.records if "no link to" in each.getMessage()]
            addresses = [f"127.0.0.1:{pod.port}" for pod in (wrong, bare)]
            return all(any(address in line for line in said) for address in addresses)

        await eventually(named)
        assert any(part in each.getMessage() and f":{wrong.port}:" in each.getMessage() for each in caplog.records)
        assert not wrong.is_linked
        assert not bare.is_linked
        assert (await router.complete()).status_code == 200


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"tls_cert": "c"}, "tls_cert and tls_key"),
        ({"edge_key": "k"}, "edge_cert and edge_key"),
        ({"tls_ca": "a"}, "tls_ca needs"),
        ({"tls_client_ca": "a"}, "tls_client_ca needs"),
        (
            {"tls_ca": "a", "tls_cert": "c", "tls_key": "k", "redis_url": "redis://redis"},
            "redis_url speaks in the clear",
        ),
    ],
)
def test_settings_that_would_protect_nothing_are_refused(given: dict[str, str], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RouterConfig(model=("m",), cluster_secret="s", **given)  # type: ignore[arg-type]


async def test_a_renewed_certificate_and_authority_count_for_http_callers_at_once(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any], tmp_path: Path
) -> None:
    edge = {"edge_cert": tmp_path / "edge.pem", "edge_key": tmp_path / "edge.key"}

    def put(whose: str) -> None:
        for setting, file in (("edge_cert", "router.pem"), ("edge_key", "router.key")):
            edge[setting].write_bytes(certificates.path(file, whose).read_bytes())

    put("ours")
    asked_for = tmp_path / "callers.pem"
    asked_for.write_bytes(certificates.path("ca.pem").read_bytes())
    named = {setting: str(path) for setting, path in edge.items()} | {"tls_client_ca": str(asked_for)}
    async with start(over_tls(certificates), tls=certificates.tls("client"), **{**settings, **named}) as router:
        before = await _shakes_hands(router, certificates.tls("client"))
        put("strangers")
        (tmp_path / "edge.key").write_text("half a file")  # what cannot be used changes nothing
        assert before == await _shakes_hands(router, certificates.tls("client")) == "opens"
        put("strangers")
        assert await _shakes_hands(router, certificates.tls("client", believes="strangers")) == "opens"
        asked_for.write_bytes(certificates.path("ca.pem", "strangers").read_bytes())
        theirs = certificates.tls("client", whose="strangers", believes="strangers")
        assert await _shakes_hands(router, theirs) == "opens"
        assert await _shakes_hands(router, certificates.tls("client", believes="strangers")) == "refused"


async def _shakes_hands(router: RunningRouter, shown: Tls) -> str:
    """Return whether a new connection opens to who shows this."""
    context = client_context(shown)
    async with httpx.AsyncClient(base_url=router.addresses["http"], trust_env=False, verify=context) as client:
        try:
            assert (await client.get("/live")).status_code == 200
        except httpx.TransportError:
            return "refused"
        return "opens"


async def test_a_client_that_is_idle_does_not_delay_the_drain(
    start: StartRouter, certificates: Certificates, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ours = certificates.tls("client")
    context = client_context(ours)
    assert isinstance(context, ssl.SSLContext)
    async with start(over_tls(certificates), tls=ours, **settings) as router:
        host, port = router.addresses["http"].removeprefix("https://").split(":")

        def connected() -> ssl.SSLSocket:  # one that reads nothing by itself, as connections in a client's pool
            wire = context.wrap_socket(socket.create_connection((host, int(port))), server_hostname=host)
            wire.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert wire.recv(1000).startswith(b"HTTP/1.1 200")
            return wire

        with await asyncio.to_thread(connected):
            router.lifecycle.drain("the test says so")
            async with asyncio.timeout(CLOSE_S):
                await router.task
    assert "graceful shutdown exceeded" not in caplog.text
