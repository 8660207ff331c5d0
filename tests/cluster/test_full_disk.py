"""No room is left where anybody logs, from the start: requests are answered as ever, and everybody ends well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import tiny_model
from reference import NEAR_TIE, Reference

pytestmark = pytest.mark.cluster

FULL = Path("/dev/full")  # every write to it fails with ENOSPC
LOGS = ("router", "prefill-0", "decode-0")
PROMPT = [(i * i * 7 + i * 3) % 256 for i in range(100)]
MAX_TOKENS = 24


def test_nobody_needs_its_log(tmp_path: Path) -> None:
    if not FULL.exists():
        pytest.skip("no /dev/full: only Linux has it")
    model, logs = tiny_model.build(tmp_path / "model"), tmp_path / "logs"
    logs.mkdir()
    for name in LOGS:
        (logs / f"{name}.log").symlink_to(FULL)
    with pytest.raises(OSError, match="No space left"):
        (logs / "router.log").write_text("so it is")
    tether = [sys.executable, "-P", "-m", "pagewire.cli.tether", str(os.getpid())]
    up = [sys.executable, "-P", "-m", "pagewire.cli.main", "up", "--model", str(model), "--dtype", "float32"]
    flags = ["--kv-memory", "8MiB", "--port", "0", "--grpc-port", "0", "--log-dir", str(logs), "--log-level", "debug"]
    environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen([*tether, *up, *flags], stdout=subprocess.PIPE, text=True, env=environ) as cluster:
        try:
            assert cluster.stdout is not None
            said = json.loads(cluster.stdout.readline())
            body = {"prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
                    "return_token_ids": True}  # fmt: skip
            url = f"{said['router']['http']}/v1/completions"
            answers = [httpx.post(url, json=body, trust_env=False, timeout=60).json() for _ in range(3)]
            cluster.send_signal(signal.SIGINT)
            assert cluster.wait(timeout=60) == 0
        finally:
            cluster.kill()
    (expected,) = Reference(model).greedy([PROMPT], MAX_TOKENS)
    known = next((at for at, margin in enumerate(expected.margins) if margin <= NEAR_TIE), MAX_TOKENS)
    assert known > 0
    for answer in answers:
        assert answer["choices"][0]["token_ids"][:known] == list(expected.tokens[:known])
        assert answer["usage"]["completion_tokens"] == MAX_TOKENS
