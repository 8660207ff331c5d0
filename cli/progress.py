"""What is being done and how far it is, on stderr: a bar where a person looks at a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, float], None]


def say(text: str) -> None:
    """Print one line to stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """Yield `report(what, done)` with `done` from 0 to 1."""
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda what, done: progress.update(task, description=f"{title}: {what}", completed=done)


def _lines(title: str) -> Report:
    said: set[str] = set()

    def report(what: str, done: float) -> None:
        if what not in said:
            said.add(what)
            say(f"{title}: {what} ({done:.0%})")

    return report
