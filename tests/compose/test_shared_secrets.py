"""What the processes of the stack share: drawn once, kept, and no weaker than what is asked for."""

from __future__ import annotations

import contextlib
import importlib.util
import stat
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
import redis
from free_ports import free_port
from redis_rig import VALKEY, program

SCRIPT = Path(__file__).parents[2] / "compose" / "shared_secrets.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_secrets", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CLUSTER", tmp_path / "cluster.toml")
    monkeypatch.setattr(module, "USERS", tmp_path / "users.acl")
    for name in ("CLUSTER", "CLUSTER_SECRET", "REDIS_PASSWORD", "REDIS_TLS"):
        monkeypatch.setenv(name, "")
    return module


def written(script: ModuleType) -> dict[str, str]:
    script.main()
    told: dict[str, str] = tomllib.loads(script.CLUSTER.read_text())
    return told


def test_secrets_are_drawn_once_and_kept(script: ModuleType) -> None:
    first = written(script)
    assert len(first["cluster_secret"]) >= 40
    assert len(urlsplit(first["redis_url"]).password or "") >= 40
    assert written(script) == first


def test_two_stacks_have_nothing_in_common(script: ModuleType) -> None:
    first = written(script)
    script.CLUSTER.unlink()
    second = written(script)
    assert first["cluster_secret"] != second["cluster_secret"]
    assert first["redis_url"] != second["redis_url"]


def test_what_is_set_wins(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    written(script)
    monkeypatch.setenv("REDIS_PASSWORD", 'p"ä/s @:#s')
    monkeypatch.setenv("CLUSTER_SECRET", 's"\\ecret')
    monkeypatch.setenv("CLUSTER", "other")
    told = written(script)
    assert told["cluster_secret"] == 's"\\ecret'
    assert told["cluster"] == "other"
    users = script.USERS.read_text()
    assert "~pw:other:*" in users
    assert 'p"' not in users  # a hash of it
    monkeypatch.setenv("REDIS_PASSWORD", "")
    assert written(script)["redis_url"] == told["redis_url"]


def test_with_tls_redis_is_met_by_it(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    clear = written(script)["redis_url"]
    monkeypatch.setenv("REDIS_TLS", "1")
    assert written(script)["redis_url"] == clear.replace("redis:", "rediss:", 1)


def test_nobody_else_can_read_them(script: ModuleType) -> None:
    written(script)
    for path in (script.CLUSTER, script.USERS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.fixture
def port(script: ModuleType, tmp_path: Path) -> Iterator[int]:
    """A real server with the users of a stack."""
    written(script)
    port = free_port()
    command = [program(VALKEY), "--port", str(port), "--bind", "127.0.0.1", "--aclfile", str(script.USERS)]
    with subprocess.Popen([*command, "--save", "", "--dir", str(tmp_path)], stdout=subprocess.DEVNULL) as process:
        try:
            deadline_s = time.monotonic() + 20
            while True:
                with contextlib.suppress(redis.ConnectionError), client(port, "probe", "probe") as probe:
                    assert probe.ping()
                    break
                assert time.monotonic() < deadline_s, "the server does not answer"
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()


def client(port: int, user: str | None = None, password: str | None = None) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=port, username=user, password=password)


def test_nobody_comes_in_without_the_password(port: int) -> None:
    for user, password in ((None, None), ("default", ""), ("pagewire", "wrong")):
        with client(port, user, password) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.get("pw:pagewire:pods")


def test_health_checks_can_say_ping_and_nothing_else(port: int) -> None:
    with client(port, "probe", "probe") as probe:
        assert probe.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            probe.get("pw:pagewire:pods")


def test_the_cluster_has_its_own_keys_and_no_others(port: int, script: ModuleType) -> None:
    url = urlsplit(tomllib.loads(script.CLUSTER.read_text())["redis_url"])
    with client(port, url.username, url.password) as pod:
        assert pod.sadd("pw:pagewire:pods", "a") == 1
        assert pod.set("pw:pagewire:pod:a", "{}", ex=10)
        for command in (
            ("GET", "other"),
            ("SADD", "pw:other:pods", "a"),
            ("KEYS", "*"),
            ("SCAN", "0"),
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                pod.execute_command(*command)
