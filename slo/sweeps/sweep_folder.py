"""A sweep on disk: probes, failures and what they come to. May be killed at any time and be opened again.

    sweep.json, experiment.json            what was asked and found; for `pagewire slo report`
    CONFIGURATION/RATE-REPEAT/run.json     a probe: its figures, with its records in run.jsonl beside them
    CONFIGURATION/failed.json              why it has no more probes
    CONFIGURATION/logs/                    of its clusters

Invariant: a probe's folder and every JSON file are there as a whole or not at all: they are written under another
name and renamed. Where probes and what was told of them differ, probes are right.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import traceback
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pagewire.core.document_files import read_object
from pagewire.core.documents import real, whole
from pagewire.core.errors import PagewireError, Unavailable
from pagewire.slo.figures.record import Record
from pagewire.slo.figures.record_files import record_file
from pagewire.slo.figures.redaction import bare
from pagewire.slo.figures.summary import Attainment
from pagewire.slo.sweeps.configuration import Configuration
from pagewire.slo.sweeps.finding import Probe

SWEEP, EXPERIMENT, FAILED, RUN, RECORDS = "sweep.json", "experiment.json", "failed.json", "run.json", "run.jsonl"
LOCK, UNFINISHED, LOGS = "lock", "unfinished", "logs"
LOCK_POLL_S = 0.1


class SweepFolder:
    """The folder of one sweep, made where it is not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def locked(self, timeout_s: float, on_wait: Callable[[], None]) -> AsyncIterator[int]:
        """Keep others out; yield the descriptor of the lock, which holds for as long as any process has it open.

        Waits for who has it after `on_wait`; raises Unavailable after `timeout_s`.
        """
        with (self.path / LOCK).open("w") as lock:
            if not _is_taken(lock.fileno()):
                on_wait()
                await self._taken(lock.fileno(), timeout_s)
            yield lock.fileno()

    async def _taken(self, lock: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await asyncio.sleep(LOCK_POLL_S)
                    if _is_taken(lock):
                        return
        except TimeoutError:
            raise Unavailable(f"another sweep works in {self.path}") from None

    # ------------------------------------------------------------------------------------------------------- reading

    def asked(self) -> dict[str, Any] | None:
        """Return the settings that a sweep in this folder was begun with, None where none was."""
        told = _read(self.path / SWEEP)
        if told is None:
            return None
        if not isinstance(asked := told.get("asked"), dict):
            raise ValueError(f"{self.path / SWEEP} does not say what was asked")
        return asked

    def probes(self, configuration: Configuration) -> list[Probe]:
        """Return its finished probes, by rate and repeat."""
        found = []
        for path in (self.path / configuration.slug).glob(f"*/{RUN}"):
            told, folder = read_object(path), path.parent.relative_to(self.path).as_posix()
            try:
                attained = _attainment(told.get("attainment"))
                rate, repeat = real(told, "rate"), whole(told, "repeat", least=0)
            except ValueError as error:
                raise ValueError(f"{path} is no probe: {error}") from error
            found.append(Probe(rate=rate, repeat=repeat, attained=attained, folder=folder))
        return sorted(found, key=lambda each: (each.rate, each.repeat))

    def failure(self, configuration: Configuration) -> str:
        """Return why it has no more probes, "" where nothing is known against it."""
        told = _read(self.path / configuration.slug / FAILED)
        return "" if told is None else str(told.get("error", "nobody knows why"))

    def logs(self, configuration: Configuration) -> Path:
        """Return the folder for the logs of its clusters, which is made."""
        logs = self.path / configuration.slug / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        return logs

    # ------------------------------------------------------------------------------------------------------- writing

    def keep(
        self, configuration: Configuration, rate: float, repeat: int, told: dict[str, Any], records: Iterable[Record]
    ) -> None:
        """Keep a finished probe."""
        unfinished = self._empty()
        with record_file(unfinished / RECORDS) as add:
            for record in records:
                add(record)
        (unfinished / RUN).write_text(_text({**told, "rate": rate, "repeat": repeat}), encoding="utf-8")
        place = self.path / configuration.slug / f"{rate!r}-{repeat}"
        place.parent.mkdir(exist_ok=True)
        unfinished.rename(place)

    def fail(self, configuration: Configuration, error: Exception) -> None:
        """Note why a configuration has no more probes."""
        text = str(error) if isinstance(error, PagewireError) else f"{type(error).__name__}: {error}"
        told = {"configuration": configuration.name, "error": text, "trace": traceback.format_exception(error)}
        self._write(self.path / configuration.slug / FAILED, told)

    def forgive(self, configuration: Configuration) -> None:
        """Forget that it failed."""
        (self.path / configuration.slug / FAILED).unlink(missing_ok=True)

    def tell(self, sweep: dict[str, Any], experiment: dict[str, Any]) -> None:
        """Write what was asked and found so far."""
        self._write(self.path / SWEEP, sweep)
        self._write(self.path / EXPERIMENT, experiment)

    def _empty(self) -> Path:
        """Return an empty folder; what is in it now was left by one that was killed."""
        unfinished = self.path / UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        return unfinished

    def _write(self, path: Path, told: dict[str, Any]) -> None:
        path.parent.mkdir(exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(_text(told), encoding="utf-8")
        new.replace(path)


def _attainment(told: Any) -> Attainment:
    if not isinstance(told, dict):
        raise ValueError("it has no attainment")
    total = whole(told, "total")
    return Attainment(good=whole(told, "good", least=0, most=total), total=total)


def _is_taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    return read_object(path)


def _text(told: dict[str, Any]) -> str:
    return bare(json.dumps(told, indent=1)) + "\n"
