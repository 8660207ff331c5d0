"""What is being done and how far it is, on stderr: a bar where a person looks at a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, float], None]
TITLE_WIDTH, BAR_WIDTH = 40, 20


def say(text: str) -> None:
    """Print one line to stderr, if it is still there: a terminal that was closed keeps nobody from stopping."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """Yield `report(what, done)` with `done` from 0 to 1."""
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column
    from rich.text import Text

    # Two lines that fit 80 columns: the bar, and what is being done, which is cut at its end if need be.
    named = Column(no_wrap=True, overflow="ellipsis", max_width=TITLE_WIDTH)
    progress = Progress(
        TextColumn("{task.description}", markup=False, table_column=named),
        BarColumn(bar_width=BAR_WIDTH), TaskProgressColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    told = Text(no_wrap=True, overflow="ellipsis")
    task = progress.add_task(title, total=1.0)

    def report(what: str, done: float) -> None:
        told.plain = what
        progress.update(task, completed=done)

    with Live(Group(progress, told), console=Console(stderr=True)):
        yield report


def _lines(title: str) -> Report:
    said: dict[str, int] = {}  # of what is being done the tenth that was told last

    def report(what: str, done: float) -> None:
        tenth = int(10 * done + 1e-9)
        if tenth > said.get(what, -1):
            said[what] = tenth
            say(f"{title}: {what} ({done:.0%})")

    return report
