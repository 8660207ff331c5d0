"""How long `pagewire up` takes to its first token: everything started anew, the model on disk, native code built.

Every repeat starts a cluster as a user would, asks it for two tokens as soon as it has printed its line, and ends it.
What the page cache holds of libraries and weights stays there, but for `--cold`, which writes back and drops it before
each start (as root). `--json PATH` writes the figures, machine and command. Seconds: medians, and all of them.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parent / "support"))

from origin import parser_of, write_figures
from pagewire_servers import up
from processes import leave_on_signals
from token_stream import prompt_body, stream

KINDS = {"1P1D": ("--prefill", "1", "--decode", "1"), "colocated": ("--colocated", "1")}
PROMPT = range(100, 132)


def start(kind: str, model: str, folder: Path) -> dict[str, float]:
    """Start a cluster, ask it, end it; return seconds from the command to its line and to the first token."""
    began_s = time.perf_counter()
    server, said = up(["--model", model, *KINDS[kind]], folder / "up.log")
    try:
        ready_s = time.perf_counter() - began_s
        answer = stream(said["router"]["http"], prompt_body("", PROMPT, 2), sent_s=began_s)
        return {"ready_s": ready_s, "first_token_s": answer.ttft_s}
    finally:
        server.stop()


def drop_page_cache() -> None:
    """Have the next reader of any file read the disk. Raises PermissionError where we are not root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def main() -> None:
    """Measure the kinds in turns, print, and write the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="smollm2", help="a Hugging Face folder, or a name of `pagewire model`")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="with nothing in the page cache")
    options = parser.parse_args()
    leave_on_signals()
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            for kind, found in runs.items():
                if options.cold:
                    drop_page_cache()
                found.append(start(kind, options.model, Path(folder)))
    for kind, found in runs.items():
        for what in ("ready_s", "first_token_s"):
            seconds = [each[what] for each in found]
            print(f"{kind:9} {what:13} {statistics.median(seconds):5.1f}   {[round(each, 1) for each in seconds]}")
    write_figures(options.json, {"cold": options.cold, "runs": runs}, "torch")


if __name__ == "__main__":
    main()
