"""Links and bulk streams over mutual TLS: who has a certificate of the cluster's gets a wire, nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pty
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Certificates
from cryptography.hazmat.primitives import serialization
from transport_rigs import FAST, SECRET, SMALL, Recorder, RecordingSink, pool, running

from pagewire.client.security import Tls as ClientTls
from pagewire.core.errors import TransferFailed, Unavailable
from pagewire.core.messages import Cancel, Heartbeat, LinkMessage, Role
from pagewire.engine.exchange.peers import open_bulk_channel
from pagewire.kvtransfer.transports.grpc import GRPC
from pagewire.kvtransfer.transports.stream_receiver import StreamReceiver
from pagewire.kvtransfer.transports.stream_sender import StreamSender
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.handshake import Identity
from pagewire.serving.link import Link, LinkEvents, LinkTimes
from pagewire.serving.link_dialer import LinkDialer
from pagewire.serving.link_server import LinkServer
from pagewire.serving.pod_config import PodConfig
from pagewire.serving.redis_address import RedisAddress
from pagewire.serving.tls import CLEAR, Tls, Wire, check_redis
from pagewire.slo.load.http_target import HttpTarget

TIMES = LinkTimes(heartbeat_s=0.05, silence_s=5.0, connect_s=5.0, reconnect_min_s=0.02, reconnect_max_s=0.1)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


def identity(name: str) -> Identity:
    return Identity(peer_id=name, incarnation="1", role=Role.DECODE, secret=SECRET)


class Pod:
    """A pod's port with links and a bulk stream, and what came in."""

    def __init__(self, wire: Wire) -> None:
        self.heard: list[LinkMessage] = []
        self.came = asyncio.Event()
        self.links = 0
        self.source = Recorder()
        self.sender = StreamSender(
            pod_id="P", secret=SECRET, memory=pool(filled=True), carriers=(GRPC,), on_lost=self.source.on_lost,
            message_bytes=SMALL.message_bytes, times=FAST,
        )  # fmt: skip
        links = LinkServer(
            lambda: identity("P"), LinkEvents(on_message=self._on_message, on_up=self._on_up, on_down=lambda _: None),
            times=TIMES,
        )  # fmt: skip
        self.server = GrpcServer(
            "127.0.0.1", 0, (links.handler(), self.sender.handler()), credentials=wire.credentials()
        )

    def _on_up(self, _link: Link) -> None:
        self.links += 1

    def _on_message(self, _link: Link, message: LinkMessage) -> None:
        if not isinstance(message, Heartbeat):
            self.heard.append(message)
            self.came.set()


@contextlib.asynccontextmanager
async def pod(wire: Wire) -> AsyncIterator[Pod]:
    running_pod = Pod(wire)
    await running_pod.server.start()
    try:
        yield running_pod
    finally:
        running_pod.sender.close("the test ends")
        await running_pod.server.stop(0)


@contextlib.asynccontextmanager
async def dialling(address: str, wire: Wire) -> AsyncIterator[LinkDialer]:
    events = LinkEvents(on_message=lambda *_: None, on_up=lambda _: None, on_down=lambda _: None)
    dialer = LinkDialer(address, lambda: identity("D"), events, times=TIMES, wire=wire)
    task = asyncio.create_task(dialer.run())
    try:
        yield dialer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def receiving(address: str, wire: Wire, recorder: Recorder) -> AsyncIterator[StreamReceiver]:
    receiver = StreamReceiver(
        functools.partial(open_bulk_channel, address, wire), pod_id="D", source_id="P", secret=SECRET,
        memory=pool(filled=False), on_lost=recorder.on_lost, carriers=(GRPC,), flow=SMALL, times=FAST,
    )  # fmt: skip
    async with running(receiver):
        yield receiver


@pytest.mark.parametrize("called", ["", "pagewire"])
async def test_a_link_and_a_shipment_go_over_mutual_tls(certificates: Certificates, called: str) -> None:
    ours = Wire(certificates.tls("client", called=called))
    async with pod(Wire(certificates.tls("pod"))) as source, dialling(source.server.address, ours) as dialer:
        link = await dialer.up(10)
        link.send(Cancel(request_id="r", reason="client"))
        async with asyncio.timeout(10):
            await source.came.wait()
        assert source.heard[0] == Cancel(request_id="r", reason="client")
        recorder = Recorder()
        async with receiving(source.server.address, ours, recorder) as receiver:
            await receiver.connected(10)
            sink = RecordingSink(recorder)
            receiver.register(1, 0, sink)
            source.sender.send("D", 1, 0, [(0, 0), (1, 1)])
            await recorder.until(lambda: len(sink.placed) == 2)
            assert sink.spoilt == []


@pytest.mark.parametrize("is_clear", [True, False])
async def test_no_proxy_of_the_environment_stands_between_two_processes_of_a_cluster(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, is_clear: bool
) -> None:
    """As Docker's client puts one into every container, and companies into every shell; here it is nobody's port."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    listens, dials = (CLEAR if is_clear else Wire(certificates.tls(name)) for name in ("pod", "client"))
    async with pod(listens) as source, dialling(source.server.address, dials) as dialer:
        await dialer.up(10)
        async with receiving(source.server.address, dials, Recorder()) as receiver:
            await receiver.connected(10)


def strangers(certificates: Certificates, case: str) -> Wire:
    match case:
        case "another authority's":
            return Wire(certificates.tls("client", whose="strangers"))
        case "another authority's, and believes in it":
            return Wire(certificates.tls("client", whose="strangers", believes="strangers"))
        case "expired":
            return Wire(certificates.tls("expired"))
        case "none":
            return CLEAR
    raise AssertionError(case)


CASES = ["another authority's", "another authority's, and believes in it", "expired", "none"]


@pytest.mark.parametrize("case", CASES)
async def test_without_a_certificate_of_the_cluster_there_is_no_wire(certificates: Certificates, case: str) -> None:
    wire = strangers(certificates, case)
    async with pod(Wire(certificates.tls("pod"))) as source, dialling(source.server.address, wire) as dialer:
        with pytest.raises(Unavailable) as refused:
            await dialer.up(10)
        told = "local issuer certificate" if "believes" in case else "Socket closed"
        assert told in refused.value.message
        # What refuses does not say why, so whoever shows a certificate is told to look at it.
        assert ("may refuse the certificate" in refused.value.message) == (told == "Socket closed" and case != "none")
        recorder = Recorder()
        async with receiving(source.server.address, wire, recorder) as receiver:
            with pytest.raises(TransferFailed):
                await receiver.connected(1.0)
        assert (source.links, source.heard) == (0, [])


async def test_a_tls_client_that_shows_nothing_gets_nothing(certificates: Certificates) -> None:
    async with pod(Wire(certificates.tls("pod"))) as source:
        credentials = grpc.ssl_channel_credentials(certificates.path("ca.pem").read_bytes())
        async with grpc.aio.secure_channel(source.server.address, credentials) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/grpc.health.v1.Health/Check")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"", timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("shown", "part"),
    [("expired", "has expired"), ("elsewhere", "Hostname Verification"), ("strangers", "local issuer certificate")],
)
async def test_a_pod_that_cannot_prove_itself_is_not_believed(
    certificates: Certificates, shown: str, part: str
) -> None:
    tls = certificates.tls("pod", whose=shown) if shown == "strangers" else certificates.tls(shown)
    ours = Wire(certificates.tls("client"))
    async with pod(Wire(tls)) as source, dialling(source.server.address, ours) as dialer:
        with pytest.raises(Unavailable) as refused:
            await dialer.up(10)
        assert part in refused.value.message
        assert source.links == 0


class Renewing:
    """Files that are written again while processes run."""

    def __init__(self, certificates: Certificates, folder: Path) -> None:
        self._certificates = certificates
        self.tls = Tls(cert=folder / "own.pem", key=folder / "own.key", ca=folder / "ca.pem")
        self.put("expired")

    def put(self, name: str, *, key: str = "", whose: str = "ours") -> None:
        """Write the certificate `name` with the key of `key`, of itself unless that is given."""
        self._write(self.tls.cert, f"{name}.pem", whose)
        self._write(self.tls.key, f"{key or name}.key", whose)
        self.believe("ours")

    def believe(self, whose: str) -> None:
        """Write whose authority is believed."""
        assert self.tls.ca is not None
        self._write(self.tls.ca, "ca.pem", whose)

    def _write(self, into: Path, file: str, whose: str) -> None:
        into.write_bytes(self._certificates.path(file, whose).read_bytes())


async def has_link(dialer: LinkDialer) -> None:
    async with asyncio.timeout(10):
        while dialer.link is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_renewed_certificate_is_shown_without_a_restart(certificates: Certificates, tmp_path: Path) -> None:
    theirs = Renewing(certificates, tmp_path)
    ours = Wire(certificates.tls("client"))
    async with pod(Wire(theirs.tls)) as source, dialling(source.server.address, ours) as dialer:
        with pytest.raises(Unavailable, match="expired"):
            await dialer.up(10)
        theirs.put("pod")
        await has_link(dialer)


async def test_a_renewed_authority_is_believed_without_a_restart(certificates: Certificates, tmp_path: Path) -> None:
    theirs = Renewing(certificates, tmp_path)
    theirs.put("pod")
    theirs.believe("strangers")
    async with pod(Wire(theirs.tls)) as source, dialling(source.server.address, Wire(certificates.tls("client"))) as us:
        with pytest.raises(Unavailable):
            await us.up(10)
        theirs.believe("ours")
        await has_link(us)


async def test_who_dials_shows_a_renewed_certificate_to_those_it_met_before(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The link and the stream for blocks: each was dialled, in vain, with the one from before."""
    ours, recorder = Renewing(certificates, tmp_path), Recorder()
    wire = Wire(ours.tls)
    async with (
        pod(Wire(certificates.tls("pod"))) as source,
        dialling(source.server.address, wire) as dialer,
        receiving(source.server.address, wire, recorder) as receiver,
    ):
        with pytest.raises(Unavailable):
            await dialer.up(10)
        with pytest.raises(TransferFailed):
            await receiver.connected(0.5)
        ours.put("client")
        await has_link(dialer)
        async with asyncio.timeout(10):
            while not receiver.is_connected:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_half_of_a_renewed_pair_is_shown_by_nobody(certificates: Certificates, tmp_path: Path) -> None:
    """What cannot be used leaves the pair from before, on both sides of a wire."""
    renewing = Renewing(certificates, tmp_path)
    renewing.put("pod")
    wire = Wire(renewing.tls)
    steady = Wire(certificates.tls("client"))
    async with pod(wire) as listening, pod(steady) as dialled:
        for spoil in (
            lambda: renewing.put("pod", key="client"),
            lambda: renewing.tls.cert.write_text("rubbish"),
            renewing.tls.key.unlink,
        ):
            renewing.put("pod")
            spoil()
            async with dialling(listening.server.address, steady) as us, dialling(dialled.server.address, wire) as they:
                await us.up(10)
                await they.up(10)


SERVER = """
import asyncio, sys
from pathlib import Path
from pagewire.serving.grpc_server import GrpcServer
from pagewire.serving.tls import Tls

async def serve():
    cert, key, ca = map(Path, sys.argv[1:])
    server = GrpcServer("127.0.0.1", 0, credentials=Tls(cert=cert, key=key, ca=ca).server())
    await server.start()
    print(server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


def test_many_who_connect_at_once_do_not_end_the_process(certificates: Certificates) -> None:
    files = [str(certificates.path(name)) for name in ("pod.pem", "pod.key", "ca.pem")]
    context = ssl.create_default_context(cafile=files[2])  # a stranger's: it has no certificate to show
    context.set_alpn_protocols(["h2"])
    command = [sys.executable, "-P", "-c", SERVER, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())

            def shake_hands(_number: int) -> None:
                with (
                    socket.create_connection(("127.0.0.1", port), 10) as wire,
                    context.wrap_socket(wire, server_hostname="127.0.0.1"),
                ):
                    pass

            with ThreadPoolExecutor(24) as callers:
                assert len([*callers.map(shake_hands, range(3000))]) == 3000
            assert server.poll() is None
        finally:
            server.kill()


def test_files_that_are_none_are_named(certificates: Certificates, tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    good, ca = certificates.tls("pod"), certificates.path("ca.pem")
    for tls, part in (
        (Tls(cert=tmp_path / "gone.pem", key=good.key, ca=ca), "gone.pem"),
        (Tls(cert=garbage, key=good.key, ca=ca), "garbage.pem"),
        (Tls(cert=good.cert, key=certificates.path("client.key"), ca=ca), "client.key"),
        (Tls(cert=good.cert, key=good.key, ca=garbage), "garbage.pem"),
        (Tls(cert=good.cert, key=good.key), "tls_ca"),
    ):
        with pytest.raises(ValueError, match=part):
            Wire(tls)


def test_a_pods_settings_go_together() -> None:
    pod: dict[str, Any] = {"model": "m", "role": Role.DECODE, "cluster_secret": "s"}
    whole: dict[str, Any] = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}
    PodConfig(**pod, **whole)
    for missing in whole:
        with pytest.raises(ValueError, match="go together"):
            PodConfig(**pod, **{**whole, missing: ""})
    for bare in ("nixl", "shm, collective", "tcp,grpc"):
        with pytest.raises(ValueError, match="in the clear"):
            PodConfig(**pod, **whole, transports=bare)
    for how in ("on", "mutual"):
        with pytest.raises(ValueError, match="metrics_tls"):
            PodConfig(**pod, metrics_tls=how)
    schemes = [PodConfig(**pod, **whole, metrics_tls=how).metrics_scheme for how in ("auto", "on", "mutual", "off")]
    assert schemes == ["https", "https", "https", "http"]
    assert PodConfig(**pod).metrics_scheme == "http"
    with pytest.raises(ValueError, match="redis_url speaks in the clear"):
        PodConfig(**pod, **whole, redis_url="redis://redis:6379")


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis:6379/0", "redis://:word@10.0.0.1", "redis://user:word@example.org:1", "redis://[fd00::1]:6379",
        "redis+cluster://127.0.0.1:1,10.0.0.1:2", "redis+cluster://127.0.0.1:1", "redis://127.0.0.1.example.org", "redis://127.0.0.1@example.org",
    ],
)  # fmt: skip
def test_a_redis_elsewhere_in_the_clear_is_refused_with_tls(url: str) -> None:
    with pytest.raises(ValueError, match="redis_url speaks in the clear"):
        check_redis(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "rediss://redis:6379/0", "rediss+cluster://a:1,b:2", "unix:///run/redis.sock", "redis://127.0.0.1:6379",
        "redis://:word@localhost/0", "redis://[::1]:6379",
    ],
)  # fmt: skip
def test_what_leaves_this_machine_encrypted_or_not_at_all_is_taken(url: str) -> None:
    check_redis(url)


def with_a_passphrase(key: Path, into: Path) -> Path:
    """Write `key` again, protected."""
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    protected = serialization.BestAvailableEncryption(b"secret")
    into.write_bytes(
        plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, protected)
    )
    return into


def test_a_key_with_a_passphrase_is_refused_by_name_and_nobody_is_asked(
    certificates: Certificates, tmp_path: Path
) -> None:
    # Without a terminal OpenSSL would fail by itself, so what it would ask is given one.
    good, protected = certificates.tls("pod"), with_a_passphrase(certificates.path("pod.key"), tmp_path / "locked.key")
    program = (
        "import pathlib, sys; from pagewire.serving.tls import Tls, Wire\n"
        "cert, key, ca = map(pathlib.Path, sys.argv[1:]); Wire(Tls(cert=cert, key=key, ca=ca))"
    )
    ours, theirs = pty.openpty()
    try:
        asked = subprocess.run(
            [sys.executable, "-P", "-c", program, str(good.cert), str(protected), str(good.ca)],
            stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True, timeout=60, text=True,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)
    assert "locked.key is protected by a passphrase" in asked.stderr
    assert asked.returncode == 1
    for refused in (
        lambda: RedisAddress.parse("rediss://r", str(good.ca), cert=str(good.cert), key=str(protected)),
        lambda: ClientTls(ca=good.ca, cert=good.cert, key=protected).credentials(),
        lambda: HttpTarget(
            "https://s", now=lambda: 0.0, ca=str(good.ca), cert=str(good.cert), key=str(protected)
        ),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="passphrase"):
            refused()
