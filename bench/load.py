"""What hours of load and too much of it come to: memory, goodput, slow readers, idle streams, a herd, giant prompts.

Each scenario runs on a cluster of real processes of its own (`tests/support/load_*.py`), with a tiny model whose
answers are known token for token; callers are on the same cores. A promise is kept on any machine; an aim depends on
its pace and on who else is on it. Exits with 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path += [str(HERE / "support"), str(HERE.parent / "tests" / "support")]

import load_giants  # noqa: E402
import load_herd  # noqa: E402
import load_idle  # noqa: E402
import load_overload  # noqa: E402
import load_slow  # noqa: E402
import load_soak  # noqa: E402
import tiny_model  # noqa: E402
from load_cluster import load_cluster  # noqa: E402
from load_questions import Question, made_up, questions, questions_of  # noqa: E402
from load_row import Row  # noqa: E402
from origin import command, machine, versions  # noqa: E402

ROOMY = ("--kv-memory", "64MiB")
SMALL = ("--kv-memory", "6MiB", "--max-model-len", "2048")  # 1,024 blocks: a soak evicts


class Bench:
    """The scenarios by name; each starts a cluster and ends it."""

    def __init__(self, model: Path, options: argparse.Namespace) -> None:
        self._model = model
        self._options = options
        self.scenarios: dict[str, Callable[[], Awaitable[Row]]] = {
            "soak": self.soak,
            "overload, places": lambda: self.overload("places", **load_overload.PLACES),
            "overload, objectives": lambda: self.overload("objectives", *load_overload.OBJECTIVES),
            "slow clients": self.slow, "idle streams": self.idle,
            "herd": self.herd, "giants, fcfs": lambda: self.giants("fcfs"), "giants, srpt": lambda: self.giants("srpt"),
        }  # fmt: skip

    def _known(self, lengths: Sequence[int], max_tokens: int = 120, least: int = 40) -> list[Question]:
        return questions(self._model, lengths, max_tokens, least)

    async def soak(self) -> Row:
        """Mixed load."""
        fresh = self._known([12, 40, 90, 150, 230, 310, 420, 600, 900, 1300], 60, 20)
        beginning = made_up(99, 512)
        repeated = questions_of(self._model, [beginning + made_up(i, 40) for i in range(24)], 40, 20)
        async with load_cluster(self._model, *SMALL) as cluster:
            return await load_soak.run(cluster, fresh, repeated, span_s=self._options.soak_s)

    async def overload(self, protection: str, *flags: str, **environ: str) -> Row:
        """Three times as much as there is room for."""
        asked = self._known([300 + 23 * number for number in range(12)], 80, 60)
        async with load_cluster(self._model, *ROOMY, *flags, **environ) as cluster:
            spans = {"lead_s": self._options.lead_s, "span_s": self._options.span_s}
            return await load_overload.run(cluster, asked, protection=protection, **spans)

    async def slow(self) -> Row:
        """Slow readers."""
        large = [max(self._known([60, 80, 100, 120, 140, 160], 150, 60), key=lambda each: len(each.answer))]
        others = self._known([40, 80, 120, 160, 200, 240], 60, 30)
        async with load_cluster(self._model, *ROOMY, **load_slow.ENVIRON) as cluster:
            return await load_slow.run(cluster, large, others, slow=4, span_s=20.0, rate=3.0)

    async def idle(self) -> Row:
        """Idle streams."""
        asked = self._known([20 + 7 * number for number in range(12)], 20, load_idle.TOKENS)
        async with load_cluster(self._model, *load_idle.FLAGS, **load_idle.ENVIRON) as cluster:
            return await load_idle.run(cluster, asked, streams=self._options.streams, asked=60)

    async def herd(self) -> Row:
        """A herd."""
        asked = load_herd.herd(self._model, 240, 2048)
        async with load_cluster(self._model, *ROOMY) as cluster:
            return await load_herd.run(cluster, asked, 2048, number=200)

    async def giants(self, scheduling: str) -> Row:
        """Giants and tiny ones."""
        giants = questions_of(
            self._model, [made_up(i, 12_000) for i in (3, 5, 9, 11)], load_giants.TOKENS, load_giants.TOKENS
        )
        tiny = self._known([16 + number for number in range(12)], load_giants.TOKENS, load_giants.TOKENS)
        async with load_cluster(self._model, *ROOMY, "--scheduling", scheduling) as cluster:
            return await load_giants.run(
                cluster, giants, tiny, rate=10.0, alone_s=10.0, many=8, scheduling=scheduling, rounds=2
            )


def show(row: Row, took_s: float) -> None:
    """Print a row."""
    print(f"\n{row.scenario} ({took_s:.0f} s)")
    for what, figure in row.figures.items():
        print(f"  {what:64} {figure}")
    for word, found in (("promise", row.promises), ("aim", row.aims)):
        for what, is_met in found.items():
            print(f"  {word + ' ' + ('met' if is_met else 'NOT MET'):20} {what}")
    sys.stdout.flush()


def main() -> None:
    """Measure, print, write."""
    # A shell has what it starts in the background ignore Ctrl-C, and so would the clusters, which are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="scenarios whose names match this")
    parser.add_argument("--soak-s", type=float, default=600.0, help="how long the soak takes, in seconds")
    parser.add_argument("--streams", type=int, default=2000, help="idle streams")
    parser.add_argument("--lead-s", type=float, default=6.0, help="seconds at each rate that are not measured")
    parser.add_argument("--span-s", type=float, default=14.0, help="seconds at each rate that are")
    parser.add_argument("--taken", default="", help="the condition in which figures are taken, for the page")
    parser.add_argument("--json", type=Path, help="where to write the figures; rows of other scenarios there are kept")
    options = parser.parse_args()
    load_idle.allow_descriptors(options.streams + 1024)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="pagewire-load-") as folder:
        model = tiny_model.build(Path(folder) / "model", "llama_long")
        for name, run in Bench(model, options).scenarios.items():
            if not options.only.search(name):
                continue
            begun_s = time.monotonic()
            rows.append(asyncio.run(run()))
            show(rows[-1], time.monotonic() - begun_s)
            if options.json:
                write(options.json, rows, options.taken)
    sys.exit(any(row.broken for row in rows))


def write(path: Path, rows: Sequence[Row], taken: str) -> None:
    """Write the rows, among those that other runs have written."""
    said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    given = [word for word in sys.argv if word not in ("--taken", taken)]  # which stands beside it
    how = {"command": command(given), "taken": taken, "machine": machine(), "versions": versions("torch")}
    fresh = {row.scenario: {**row.json(), **how} for row in rows}
    kept = [row for row in said["rows"] if row["scenario"] not in fresh]
    path.write_text(json.dumps({"rows": [*kept, *fresh.values()]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
