"""How long threads of OpenMP look for one another before they sleep, as OpenMP itself says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("told", "taken"), [({}, "3000"), ({"GOMP_SPINCOUNT": "77"}, "77")])
def test_threads_look_for_one_another_as_long_as_we_say_or_whoever_starts_us(told: dict[str, str], taken: str) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    process = subprocess.run(
        [sys.executable, "-P", "-c", "import pagewire.engine.process"], check=True, capture_output=True, text=True,
        env={**environ, "OMP_DISPLAY_ENV": "VERBOSE", **told},
    )  # fmt: skip
    assert re.findall(r"GOMP_SPINCOUNT = '(\d+)'", process.stderr) == [taken]
