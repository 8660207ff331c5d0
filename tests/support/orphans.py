"""What is held for nobody: asked, at the end of every test, of all that grants leases or gives blocks out.

Whatever a test makes is noted by itself: pods' exports and engines' schedulers in this process, by their constructors,
and clusters of real processes, which are asked over HTTP. Nobody has to remember to ask, nor to keep what it made: that
is kept here to the test's end, and what lives longer is asked for as long as it is there.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

from pagewire.engine.exchange.exports import Exports
from pagewire.engine.scheduler import Scheduler


class Keeper(Protocol):
    """Something that holds blocks for others, in other processes."""

    def orphans(self) -> dict[str, float]:
        """Return what it holds for nobody, by name and only what is not 0; waits for what ends within seconds."""
        ...


_keepers: weakref.WeakSet[Any] = weakref.WeakSet()
_made: list[Any] = []  # by the test that runs


def note(keeper: Keeper) -> None:
    """Ask this one too, for as long as it is there."""
    _keepers.add(keeper)


def forget(keeper: Keeper) -> None:
    """Ask it no more."""
    _keepers.discard(keeper)


def watch() -> None:
    """Note whatever is made from now on."""
    for kind in (Exports, Scheduler):
        _note_when_made(kind)


def _note_when_made(kind: type[Any]) -> None:
    plain = kind.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        _keepers.add(self)
        _made.append(self)

    kind.__init__ = init


def end_of_test() -> None:
    """Fail where anything is held for nobody, and keep what was made no longer."""
    try:
        assert_none()
    finally:
        _made.clear()


def assert_none() -> None:
    """Fail where anything is held for nobody; what was said once is not said of the next test again."""
    found = {keeper: held for keeper in list(_keepers) if (held := _held_for_nobody(keeper))}
    for keeper in found:
        _keepers.discard(keeper)
    assert not found, f"held for nobody: {list(found.values())}"


def _held_for_nobody(keeper: Any) -> dict[str, float]:
    match keeper:
        case Exports():
            # As the pod's own gauge counts them, and a lease that no export has.
            held = {"leases_orphaned": keeper.num_orphaned, "leases alone": len(keeper._leases) - len(keeper)}
        case Scheduler():
            held = {"kv_blocks_orphaned": keeper.pool.num_orphaned(keeper.tables())}
        case _:
            return dict(keeper.orphans())
    return {name: number for name, number in held.items() if number}
