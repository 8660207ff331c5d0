"""What faults of a running cluster come to: a row each of requests, failures, wrong tokens, leaks, recovery and SLOs.

Processes of a tiny model under open-loop load, whose answers are known token for token; the faults are those of
`tests/support/chaos_*.py`. The load's own cost is on the same cores. Every wait has a bound: a trial that comes to
nothing says what it waited for, and those after it get a cluster of their own. Exits with 1 where a promise was broken
or a trial came to nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import json
import re
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path += [str(HERE / "support"), str(HERE.parent / "tests" / "support")]

import chaos_namespace  # noqa: E402
import chaos_network  # noqa: E402
import chaos_resources  # noqa: E402
import chaos_signals  # noqa: E402
import chaos_trial  # noqa: E402
import tiny_model  # noqa: E402
from chaos_cluster import ChaosCluster, chaos_cluster  # noqa: E402
from load_questions import Question, questions  # noqa: E402
from open_load import OpenLoad  # noqa: E402
from origin import command, machine, versions  # noqa: E402

LENGTHS = tuple(40 + 17 * number for number in range(18))
MAX_TOKENS, LEAST = 150, 40
WARM_S = 2.0
MOST_S = 900.0  # for one fault, or for a cluster to start or to end: more than the bounds of all its parts


class Record:
    """What came of the trials: rows, written to `path` as they come, and of those that came to nothing, why."""

    def __init__(self, path: Path | None) -> None:
        self.rows: list[chaos_trial.Row] = []
        self.nothing: list[str] = []
        self._path = path

    @property
    def is_good(self) -> bool:
        """True where every trial had its end and no promise was broken."""
        return not self.nothing and not any(row.broken_promises for row in self.rows)

    def note(self, row: chaos_trial.Row) -> None:
        """Show a row and keep it."""
        self.rows.append(row)
        show(row)
        if self._path:
            write(self._path, self.rows)

    def came_to_nothing(self, what: str, error: Exception) -> None:
        """Say what has no figures and why."""
        self.nothing.append(what)
        print(
            f"{what:36} CAME TO NOTHING: {type(error).__name__}: {error}", *getattr(error, "__notes__", ()), flush=True
        )


async def measure(folder: Path, only: re.Pattern[str], kind: str, record: Record) -> None:
    """Let all faults strike whose names match, one after the other; each row is recorded as it comes."""
    model = tiny_model.build(folder / "model")
    asked = questions(model, LENGTHS, MAX_TOKENS, LEAST)

    def is_asked(fault: chaos_trial.Fault) -> bool:
        return fault.kind == (kind or fault.kind) and only.search(fault.name) is not None

    plain = partial(chaos_cluster, model, folder)
    wired = partial(chaos_cluster, model, folder, "--transports", "grpc", wired=True)
    parted = partial(chaos_namespace.parted_cluster, model, folder)
    for made, faults in (
        (plain, (*chaos_signals.faults(), *chaos_resources.faults())),
        (wired, chaos_network.faults()),
        (parted, chaos_namespace.faults()),
    ):
        left = deque(fault for fault in faults if is_asked(fault))
        if left and made is parted and (why := chaos_namespace.missing()):
            print(f"NOT RUN: what needs a network namespace ({why})", file=sys.stderr)
            continue
        while left:
            await take(made, left, asked, record)


async def take(
    made: Callable[[], AbstractAsyncContextManager[ChaosCluster]], left: deque[chaos_trial.Fault],
    asked: list[Question], record: Record,
) -> None:  # fmt: skip
    """Let the faults that are left strike one cluster, until they are through or a trial comes to nothing."""
    bounded()
    is_up = False
    try:
        async with made() as cluster:
            await warm(cluster.urls, asked)
            is_up = True
            while left:
                bounded()
                fault = left.popleft()
                try:
                    record.note(await chaos_trial.run(cluster, fault, asked))
                except Exception as error:
                    record.came_to_nothing(fault.name, error)
                    break
            bounded()
    except Exception as error:
        record.came_to_nothing("the end of a cluster" if is_up else "the start of a cluster", error)
        if not is_up:  # the next one would hardly fare better
            left.clear()


def bounded() -> None:
    """Have this process end after a while, with all its stacks told, unless it comes here again: loops can hang too."""
    faulthandler.dump_traceback_later(MOST_S, exit=True)


async def warm(urls: list[str], asked: list[Question]) -> None:
    """Have links, streams and first steps behind us."""
    async with OpenLoad(lambda: urls, asked, chaos_trial.RATE, "warm") as load:
        await asyncio.sleep(WARM_S)
        await load.stop()


def show(row: chaos_trial.Row) -> None:
    """Print a row."""
    print(
        f"{row.fault:36} {row.requests:4} requests  failed {row.failed or 0!s:24} wrong {row.wrong}"
        f"  leaked {row.leaked or 0}  recovery {row.recovery_s:5.2f} s  whole {row.whole_s:5.2f} s"
        f"  missed {row.missed_before}/{row.before} before {row.missed_after}/{row.after} after"
        f"  moved {row.moved} {row.causes}  {'; '.join(row.broken_promises)} {row.messages or ''}",
        flush=True,
    )


PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Measure, print, write."""
    # A shell has what it starts in the background ignore Ctrl-C, and so would the clusters, which are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="faults whose names match this")
    parser.add_argument("--kind", default="", help="faults of this kind alone: process, resource, network, namespace")
    parser.add_argument("--json", type=Path, help="where to write the figures; rows of other faults there are kept")
    arguments = parser.parse_args()
    # What loses its parent, as a killed pod's engine does, is ours then and nobody else's.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    record = Record(arguments.json)
    with tempfile.TemporaryDirectory(prefix="pagewire-chaos-") as folder:
        asyncio.run(measure(Path(folder), arguments.only, arguments.kind, record))
    sys.exit(not record.is_good)


def write(path: Path, rows: Sequence[chaos_trial.Row]) -> None:
    """Write the rows, among those that other runs have written."""
    said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"rows": []}
    fresh = {row.fault: row.json() for row in rows}
    kept = [row for row in said["rows"] if row["fault"] not in fresh]
    told = {**(said.get("commands") or {}), **{row["kind"]: command(sys.argv) for row in fresh.values()}}
    said = {
        "machine": machine(), "versions": versions("torch"), "commands": told,
        "slo": {"ttft-s": chaos_trial.TTFT_S, "gap-s": chaos_trial.GAP_S}, "rate": chaos_trial.RATE,
        "rows": [*kept, *fresh.values()],
    }  # fmt: skip
    path.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
