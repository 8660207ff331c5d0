"""One parser of foreign bytes as fuzzing sees it, and the verdict on what it makes of some.

A parser takes the bytes or refuses them by an error that it names. Another exception, more than `CPU_S` of processor
time, or more than `GROWTH_BYTES` of new memory is a finding. Knows no fuzzer. Invariant: a verdict depends on the
parser and the bytes alone.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
CPU_S = 5.0  # processor time: a machine that is busy elsewhere makes no finding
GROWTH_BYTES = 512 << 20  # of addresses, so that what is merely asked for counts too

Mutate = Callable[[bytes, Random, Sequence[str]], bytes]
"""What makes other bytes of some; the texts are the words of the parser's seeds."""


class TooSlow(BaseException):
    """The time is over. No parser's own handling of errors is to hide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """`parse` takes bytes as they come, or raises one of `errors`; it takes each of `seeds`.

    `files` are those whose code it runs, under the repository's root. Of an equal effort, one that costs 2 has half as
    many cases as one that costs 1.
    """

    name: str
    parse: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    errors: tuple[type[Exception], ...] = ()
    files: tuple[str, ...]
    mutate: Mutate
    cost: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a parser should not have done; two of one `place` are one."""

    kind: str
    place: str
    text: str


def verdict(parser: Parser, data: bytes) -> Finding | None:
    """Return what is wrong with how `parser` takes `data`, None for nothing."""
    try:
        with within(CPU_S):
            parser.parse(data)
    except parser.errors:
        return None
    except (Exception, TooSlow) as error:
        return Finding(kind=type(error).__name__, place=_place(error), text=f"{error}"[:300])
    return None


@contextlib.contextmanager
def within(cpu_s: float) -> Iterator[None]:
    """Raise TooSlow after so much processor time; code that never comes back to Python is not reached by it."""
    before = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def bounded_memory(num_bytes: int = GROWTH_BYTES) -> Iterator[None]:
    """Let this process have so many bytes of addresses more, and no more: asking for them is a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow(f"more than {CPU_S:g} s of processor time")


def _place(error: BaseException) -> str:
    """Return the last place of ours that the error came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/pagewire/" in frame.filename]
    if not frames or isinstance(error, TooSlow):
        return ""
    return f"{frames[-1].filename.rsplit('/pagewire/', 1)[1]}:{frames[-1].name}"
