"""`pagewire slo report` as a process: its page, its pictures, its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import made_up_trial, write_run
from pagewire_process import Ended, pagewire


async def slo_report(*arguments: str, cwd: Path, **environ: str) -> Ended:
    return await pagewire("slo", "report", *arguments, cwd=cwd, environ=environ)


async def test_two_runs_become_a_page_that_compares_them(tmp_path: Path) -> None:
    for name, capacity in (("before", 4.0), ("after", 20.0)):
        write_run(tmp_path / f"{name}.json", made_up_trial(2, capacity, seed=len(name)))
    code, out, err = await slo_report(
        "before.json", "after.json", "--figures", "figures", "-o", "two.html", "--title", "Mine", cwd=tmp_path
    )
    assert code == 0, err
    assert out.startswith("after against before: attainment better by")
    page = (tmp_path / "two.html").read_text()
    assert "<h1>Mine</h1>" in page
    assert "after against before" in page
    assert (tmp_path / "figures" / "differences.png").is_file()


async def test_a_home_that_cannot_be_written_to_is_no_concern_of_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "a.json", made_up_trial(2, 9.0))
    nowhere = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"), "/dev/null")
    code, _, err = await slo_report("a.json", cwd=tmp_path, **nowhere)
    assert (code, err) == (0, "pagewire: 3 figures in report.html\n")


async def test_runs_are_judged_by_other_objectives(tmp_path: Path) -> None:
    write_run(tmp_path / "a.json", made_up_trial(2, 9.0))
    code, out, err = await slo_report("a.json", "--slo", "ttft=1ms", cwd=tmp_path)
    assert code == 0, err
    assert "0.0 % of 200 requests met ttft=1ms" in out
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("none.json",), 1, "none.json"),
        (("bare.json",), 1, "no records beside it"),
        (("bare.json", "--slo", "tbt=1ms"), 2, "'tbt' is no objective"),
    ],
)
async def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    write_run(tmp_path / "bare.json", made_up_trial(2, 9.0, count=20)).with_suffix(".jsonl").unlink()
    returned, out, err = await slo_report(*arguments, cwd=tmp_path)
    assert (returned, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1
