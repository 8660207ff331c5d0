"""`pagewire slo run` as a process, before a server that computes nothing: its table, its files, its refusals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from made_up_runs import record
from pagewire_process import Ended, pagewire
from stub_server import Asked, serving

from pagewire.cli.slo_origin import command_line
from pagewire.cli.slo_run import _line
from pagewire.slo.figures.objectives import parse_objectives
from pagewire.slo.figures.record_files import read_records
from pagewire.slo.load.player import Played
from pagewire.slo.load.run import RunPlan


async def answer(asked: Asked) -> None:
    for number in range(asked.body["max_tokens"]):
        await asked.token(number)
    await asked.end()


async def slo_run(*flags: str, before: tuple[str, ...] = (), **environ: str) -> Ended:
    return await pagewire("slo", "run", *flags, before=before, environ=environ)


async def test_a_table_records_and_a_summary(tmp_path: Path) -> None:
    async with serving(answer) as stub:
        code, out, err = await slo_run(
            *("--url", stub.url, "--requests", "20", "--rate", "100", "--output", "3", "--seed", "7"),
            *(
                "--slo",
                "ttft=30s,tpot=30s",
                "--json",
                str(tmp_path / "s.json"),
                "--records",
                str(tmp_path / "r.parquet"),
            ),
            *("--api-key", "hush"),
        )
    assert code == 0, err
    assert "20 of 20" in out
    told = json.loads((tmp_path / "s.json").read_text())
    assert (told["seed"], told["workload"]["seed"], told["workload"]["output"]) == (7, 7, "3")
    assert told["slo_ms"] == {"ttft": 30_000, "tpot": 30_000}
    assert "hush" not in json.dumps(told)
    assert len(read_records(tmp_path / "r.parquet")) == 20
    assert stub.asked[0].headers["authorization"] == "Bearer hush"


@pytest.mark.parametrize("columns", [80, 200])
async def test_a_terminal_is_shown_how_far_it_is(columns: int) -> None:
    terminal, end = os.openpty()
    async with serving(answer) as stub:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "run", "--url", stub.url,
            "--requests", "30", "--rate", "20", "--output", "3", "--slo", "ttft=30s",
            stdout=asyncio.subprocess.DEVNULL, stderr=end, env={**os.environ, "COLUMNS": str(columns), "TERM": "xterm"},
        )  # fmt: skip
        os.close(end)
        async with asyncio.timeout(60):
            shown = await asyncio.to_thread(read_all, terminal)
            code = await process.wait()
    assert code == 0, shown
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n").splitlines()
    told = r"\d+ running, [1-9]\d* done, 0 failed, 100% good, TTFT p50 \d+ p99 \d+ ms"
    assert any(re.fullmatch(told, line.rstrip()) for line in lines), shown
    assert any(re.match(rf"{re.escape(stub.url)} .*━{{5,}}.* +\d+% \d:\d\d:\d\d", line) for line in lines), shown
    assert max(len(line) for line in lines if not line.startswith("pagewire: ")) <= columns


def test_what_a_busy_run_is_doing_fits_eighty_columns() -> None:
    records = [record(number, number, 12.345, (0.02,)) for number in range(40_000)]
    played = Played(records=records, running=256)
    line = _line(played, RunPlan(objectives=parse_objectives("ttft=30s")))
    assert line == "256 running, 40000 done, 0 failed, 100% good, TTFT p50 12345 p99 12345 ms"
    assert len(line) <= 80


def read_all(terminal: int) -> str:
    """Return what is written to a terminal until nobody has it open any more."""
    found = b""
    with suppress(OSError), open(terminal, "rb", buffering=0) as screen:
        while part := screen.read(4096):
            found += part
    return found.decode()


async def test_settings_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('requests = 4\noutput = "2"\nrate = 100.0\n')
    async with serving(answer) as stub:
        code, out, err = await slo_run("--url", stub.url, "--config", str(tmp_path / "w.toml"), PAGEWIRE_REQUESTS="6")
    assert code == 0, err
    assert "6 of 6" in out
    assert {asked.body["max_tokens"] for asked in stub.asked} == {2}


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--slo", "tbt=5ms"), 2, "'tbt' is no objective"),
        (("--token-ids", "9-5"), 2, "no range of token ids"),
        (("--concurrency", "2", "--rate", "3"), 2, "a closed loop"),
        (("--trace", "none.jsonl"), 1, "none.jsonl"),
        (("--url", "http://127.0.0.1:9", "--requests", "1"), 1, "does not say what it serves"),
    ],
)
async def test_what_is_wrong_is_one_line(flags: tuple[str, ...], code: int, said: str) -> None:
    returned, out, err = await slo_run(*flags)
    assert (returned, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("flag", "name"), [("--json", "s.json"), ("--records", "r.jsonl"), ("--records", "r.parquet")])
async def test_a_file_that_cannot_be_written_is_found_before_the_first_request(
    tmp_path: Path, flag: str, name: str
) -> None:
    async with serving(answer) as stub:
        code, out, err = await slo_run("--url", stub.url, "--requests", "2", flag, str(tmp_path / "none" / name))
    assert (code, out, stub.asked) == (1, "", [])
    assert err == f"pagewire: {tmp_path / 'none' / name}: No such file or directory\n"


async def test_a_run_that_cannot_begin_leaves_the_last_ones_figures(tmp_path: Path) -> None:
    for flag, ending in (("--json", "json"), ("--records", "jsonl"), ("--records", "parquet")):
        old, new = tmp_path / f"old.{ending}", tmp_path / f"new.{ending}"
        old.write_text("{}")
        for file in (old, new):
            await slo_run("--url", "http://127.0.0.1:9", "--requests", "1", flag, str(file))
        assert (old.read_text(), new.exists()) == ("{}", False)


async def test_more_requests_at_once_than_a_shell_allows_files_are_asked(tmp_path: Path) -> None:
    """A connection that this client could not open would count as one that the server refused."""
    has_all = asyncio.Event()

    async def together(asked: Asked) -> None:
        if len(stub.asked) == 100:
            has_all.set()
        await has_all.wait()
        await answer(asked)

    async with serving(together) as stub:
        flags = ("--url", stub.url, "--concurrency", "100", "--requests", "100", "--output", "2")
        code, out, err = await slo_run(*flags, before=("sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh"))
    assert code == 0, err
    assert "100 of 100" in out


@asynccontextmanager
async def begun(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A `slo run` under way, for a minute at most."""
    command = (sys.executable, "-P", "-m", "pagewire.cli.main", "slo", "run", *flags)
    pipe = asyncio.subprocess.PIPE
    async with asyncio.timeout(60):
        yield await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
async def test_what_came_before_an_interrupt_is_told_and_written(tmp_path: Path, ending: str) -> None:
    silent = asyncio.Event()

    async def first_three(asked: Asked) -> None:
        if len(stub.asked) > 3:
            silent.set()
            await asyncio.sleep(600)
        await answer(asked)

    async with (
        serving(first_three) as stub,
        begun(
            *("--url", stub.url, "--concurrency", "1", "--output", "2", "--duration-s", "600"),
            *("--records", str(tmp_path / f"s.{ending}"), "--json", str(tmp_path / "s.json")),
        ) as process,
    ):
        await silent.wait()
        if ending == "jsonl":  # what is killed leaves its records, too
            assert len(read_records(tmp_path / "s.jsonl")) == 3
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"3 of 3" in out
    assert b"the run was cut short: 1 arrivals were under way" in err
    told = json.loads((tmp_path / "s.json").read_text())
    assert (told["requests"], told["is_cut_short"]) == (3, True)
    assert told["window"]["until_s"] < 600
    assert len(read_records(tmp_path / f"s.{ending}")) == 3


async def test_a_run_of_which_nothing_was_answered_has_failed(tmp_path: Path) -> None:
    async def fails(asked: Asked) -> None:
        if len(stub.asked) > 1 or not is_answering:
            asked.writer.close()
        else:
            await answer(asked)

    for is_answering in (False, True):  # one answer of three is a run
        async with serving(fails) as stub:
            code, out, _ = await slo_run("--url", stub.url, "--requests", "3", "--rate", "100")
        assert code == (0 if is_answering else 1)
        assert f"{int(is_answering)} of 3" in out


async def test_an_interrupt_before_anything_counts_is_one_as_ever() -> None:
    asked_for = asyncio.Event()

    async def nothing(asked: Asked) -> None:
        asked_for.set()
        await asyncio.sleep(600)

    async with serving(nothing) as stub, begun("--url", stub.url, "--requests", "1") as process:
        await asked_for.wait()
        process.send_signal(signal.SIGINT)
        out, _ = await process.communicate()
    assert (process.returncode, out) == (130, b"")


@pytest.mark.parametrize("flag", ["--json", "--records"])
async def test_a_run_that_cannot_be_written_in_the_end_is_told_all_the_same(flag: str) -> None:
    async with serving(answer) as stub:
        code, out, err = await slo_run("--url", stub.url, "--requests", "2", "--rate", "100", flag, "/dev/full")
    assert code == 1
    assert "2 of 2" in out
    assert "No space left on device" in err


def test_a_command_is_told_without_its_key() -> None:
    told = command_line(["/usr/bin/pagewire", "slo", "run", "--api-key", "hush", "--slo", "ttft=1s", "--api-key=hush"])
    assert told == "pagewire slo run --api-key ... --slo ttft=1s --api-key=..."
