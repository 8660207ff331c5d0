"""What a container's health check says of a router: in the clear, over TLS, and where callers show certificates."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificates
from fake_pod import FakePod
from free_ports import free_port
from router_rig import StartRouter

SCRIPT = Path(__file__).parents[2] / "compose" / "health.py"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.write(tmp_path_factory.mktemp("certificates"))


async def probed(url: str) -> subprocess.CompletedProcess[str]:
    """Run it as the image does, at a router's port."""
    command = [sys.executable, "-SI", str(SCRIPT), url.rpartition(":")[2]]
    environ = {"PAGEWIRE_HOST": "0.0.0.0"}
    return await asyncio.to_thread(
        subprocess.run, command, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


def settings(certificates: Certificates, door: str) -> dict[str, Any]:
    """Return how a router is told to meet its callers, and what the test shows to it."""
    files = {"edge_cert": "router.pem", "edge_key": "router.key", "tls_client_ca": "ca.pem"}
    asked = {"clear": (), "TLS": ("edge_cert", "edge_key"), "certificates": tuple(files)}[door]
    told: dict[str, Any] = {name: str(certificates.path(files[name])) for name in asked}
    return {**told, "tls": certificates.tls("client")} if asked else told


@pytest.mark.parametrize("door", ["clear", "TLS"])
@pytest.mark.parametrize(("pods", "code", "said"), [(1, 0, "200 "), (0, 1, "503 ")])
async def test_health_is_the_routers(
    start: StartRouter, certificates: Certificates, door: str, pods: int, code: int, said: str
) -> None:
    async with start(*(FakePod("c0") for _ in range(pods)), **settings(certificates, door)) as router:
        done = await probed(router.addresses["http"])
        assert (done.returncode, done.stdout[:4], done.stderr) == (code, said, "")


async def test_where_callers_show_certificates_it_is_seen_to_listen(
    start: StartRouter, certificates: Certificates
) -> None:
    async with start(**settings(certificates, "certificates")) as router:
        done = await probed(router.addresses["http"])
        assert (done.returncode, done.stderr) == (0, "")
        assert "200" not in done.stdout


async def test_where_nobody_listens_nothing_is_healthy() -> None:
    done = await probed(f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "refused" in done.stdout
