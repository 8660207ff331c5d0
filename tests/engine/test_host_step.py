"""What `bench/host_step.py` tells of a step in Python; how long it takes is no matter here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_bench_tells_of_each_part_of_a_step(tmp_path: Path) -> None:
    bench, found = Path(__file__).parents[2] / "bench" / "host_step.py", tmp_path / "found.json"
    shape = ["--sequences", "2", "3", "--context", "20", "40", "--steps", "3"]
    subprocess.run([sys.executable, "-P", str(bench), *shape, "--json", str(found)], check=True, capture_output=True)
    told = json.loads(found.read_text())
    assert told["command"].startswith("host_step.py --sequences 2 3")
    assert told["figures"].keys() == {"2 x 20", "3 x 40"}
    for parts in told["figures"].values():
        assert parts.keys() == {"choose", "tensors", "packed", "account"}
        assert all(0 < each["least-us"] <= each["median-us"] for each in parts.values())
