"""The same stack with TLS on every wire of it: answers, nothing in the clear, files that are renewed while it runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from container_engine import Project, until

from pagewire.client import Client, Message, Tls

ASKED = "What is the capital of France?"
KNOWN = "The capital of France is Paris."
# Runs in the router's container: what pods and Redis say to whom, by their names in the stack's own network.
LOOK = """
import socket, ssl, sys
service, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
certs = "/etc/pagewire/certs/"
wire = socket.create_connection((socket.gethostbyname(service), port), 10)
try:
    if what != "clear":
        context = ssl.create_default_context(cafile=certs + "ca.pem")
        if port == 50051:
            context.set_alpn_protocols(["h2"])
        if what == "shown":
            context.load_cert_chain(certs + "router.pem", certs + "router.key")
        wire = context.wrap_socket(wire, server_hostname="pagewire")
    http2 = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes(3) + b"\\x04" + bytes(5)  # with no settings of our own
    wire.sendall({6379: b"PING\\r\\n", 9100: b"GET /live HTTP/1.0\\r\\n\\r\\n", 50051: http2}[port])
    heard = wire.recv(100)
    print("settings" if heard[3:4] == b"\\x04" else (heard or b"hung up").decode(errors="replace").split()[0])
except OSError as error:
    print("hung up", error)
"""


def look(stack: Project, service: str, port: int, what: str) -> str:
    (router,) = stack.containers("router")
    return stack.engine.run("exec", router, "python3", "-c", LOOK, service, str(port), what).strip()


def asked(stack: Project, certs: Path) -> list[str]:
    """Return the answer by HTTP and that of the SDK, by the ports that are published."""
    context = ssl.create_default_context(cafile=certs / "ca.pem")
    url = f"https://127.0.0.1:{stack.variables['HTTP_PORT']}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": ASKED}], "temperature": 0, "max_tokens": 32}
    answer = httpx.post(url, json=body, timeout=300, trust_env=False, verify=context).raise_for_status().json()
    address = f"127.0.0.1:{stack.variables['GRPC_PORT']}"
    with Client(address, tls=Tls(ca=certs / "ca.pem")) as client:
        said = client.generate([Message(role="user", content=ASKED)], max_tokens=32, temperature=0.0)
    return [answer["choices"][0]["message"]["content"], said.text]


def test_callers_are_answered_by_tls_and_not_in_the_clear(secured: Project, certs: Path) -> None:
    assert asked(secured, certs) == [KNOWN, KNOWN]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{secured.variables['HTTP_PORT']}/health", timeout=10, trust_env=False)


def test_inside_nothing_is_said_in_the_clear(secured: Project) -> None:
    for service in ("prefill", "decode"):
        assert look(secured, service, 9100, "bare").startswith("HTTP/1")
        assert not look(secured, service, 9100, "clear").startswith("HTTP/1")
        assert look(secured, service, 50051, "shown") == "settings"
    assert look(secured, "redis", 6379, "shown") == "-NOAUTH"
    for service, port in (("redis", 6379), ("prefill", 50051), ("decode", 50051)):  # who shows a certificate of theirs
        for what in ("bare", "clear"):
            assert look(secured, service, port, what).startswith("hung")


def test_prometheus_sees_all_of_them(secured: Project) -> None:
    url = f"http://127.0.0.1:{secured.variables['PROMETHEUS_PORT']}/api/v1/query"

    def seen() -> dict[str, float]:
        query = {"query": 'sum by (job) (up{job=~"pagewire-.*"})'}
        found = httpx.get(url, params=query, timeout=10, trust_env=False).json()["data"]["result"]
        return {each["metric"]["job"]: float(each["value"][1]) for each in found}

    wanted = {"pagewire-router": 1.0, "pagewire-pods": 2.0}
    until(lambda: seen() == wanted, f"Prometheus does not see {wanted}", 120.0)


def test_another_authority_takes_over_while_it_runs(
    secured: Project, certs: Path, write_certificates: Callable[[], None]
) -> None:
    """All files at once: whoever is met next is met by them, and whoever starts anew finds the others."""
    write_certificates()
    until(lambda: look(secured, "redis", 6379, "shown") == "-NOAUTH", "Redis shows what it showed before", 60.0)
    for service in ("prefill", "decode"):
        assert look(secured, service, 9100, "bare").startswith("HTTP/1")
    for service in ("prefill", "router"):
        (container,) = secured.containers(service)
        secured.engine.run("stop", container)
        secured.engine.run("start", container)
        secured.wait_healthy(service)
    context = ssl.create_default_context(cafile=certs / "ca.pem")

    def has_both() -> bool:
        url = f"https://127.0.0.1:{secured.variables['HTTP_PORT']}/health"
        pods = httpx.get(url, timeout=10, trust_env=False, verify=context).json()["pods"]
        return bool(pods["prefill"] == pods["decode"] == 1)

    until(has_both, "the pods are not linked", 120.0)
    assert asked(secured, certs) == [KNOWN, KNOWN]
