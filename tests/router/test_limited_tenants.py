"""Tenants' limits in a whole router before fake pods: they hold, and what they count is what was asked.

What is charged is seen in what is let in. It cannot prove what engines compute.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_pod import FakePod
from router_rig import StartRouter, eventually

from pagewire.router.keys import KEY_BYTES, NewKey

PROMPT = "QWXZKJVYUPDGBMHL" * 5  # a token for each letter
WriteKeys = Callable[..., dict[str, dict[str, str]]]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.toml")


@pytest.fixture
def write(file: str) -> WriteKeys:
    """Writes the key file, with the limits of each tenant, and returns the headers by which each calls."""
    keys: dict[str, NewKey] = {}

    def written(**tenants: dict[str, Any]) -> dict[str, dict[str, str]]:
        lines: list[str] = []
        for name, limits in tenants.items():
            key = keys.setdefault(name, NewKey.of(secrets.token_bytes(KEY_BYTES)))
            lines += [f"[tenants.{name}]", f'keys = ["{key.line}"]', *(f"{k} = {v}" for k, v in limits.items())]
        Path(file).write_text("\n".join(lines))
        return {name: {"authorization": f"Bearer {key.key}"} for name, key in keys.items()}

    return written


async def test_changed_limits_hold_whatever_older_requests_come_to_their_ends(
    start: StartRouter, file: str, write: WriteKeys
) -> None:
    headers, pod = write(acme={}), FakePod("c0")
    pod.hold_at = 1
    async with start(pod, api_keys=file, open_metrics=True, headers=headers["acme"]) as router:
        old = [asyncio.create_task(router.complete("x", max_tokens=2)) for _ in range(3)]
        await pod.until(lambda: len(pod.submits) == len(old))
        write(acme={"tokens_per_s": 0.001, "burst_tokens": 100})
        pod.hold_at = None

        async def has_changed() -> bool:
            return (await router.complete(PROMPT * 2, max_tokens=1)).status_code == 429

        await eventually(has_changed)
        pod.release()
        for each in old:
            assert (await each).status_code == 200
            assert (await router.complete("x", max_tokens=1)).status_code == 429
