"""`pagewire slo export` as a process: what it writes is read again as what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from pagewire_process import pagewire

from pagewire.slo.workloads.formats.mooncake import read_mooncake
from pagewire.slo.workloads.formats.tables import read_burstgpt
from pagewire.slo.workloads.samples import sample


async def slo_export(*flags: str, code: int = 0) -> str:
    ended = await pagewire("slo", "export", *flags)
    assert ended.code == code, ended.err
    return ended.err


async def test_a_table_of_lengths_becomes_a_recording_of_mooncakes(tmp_path: Path) -> None:
    path = tmp_path / "burst.jsonl"
    await slo_export(str(path), "--trace", "sample:burstgpt", "--requests", "30")
    ours, theirs = [*read_mooncake(path)], [*read_burstgpt(sample("burstgpt"))][:30]
    assert [each.at_s for each in ours] == pytest.approx([each.at_s for each in theirs], abs=1e-3)
    assert [(t.input_tokens, t.output_tokens) for each in ours for t in each.turns] == [
        (t.input_tokens, t.output_tokens) for each in theirs for t in each.turns
    ]


async def test_what_is_made_up_is_written_with_its_times_and_what_it_shares(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    await slo_export(
        str(path),
        *("--requests", "20", "--rate", "4", "--arrivals", "constant", "--input", "2048", "--prefix-share", "0.5"),
    )
    arrivals = [*read_mooncake(path)]
    assert [each.at_s for each in arrivals] == pytest.approx([number / 4 for number in range(20)], abs=1e-3)
    assert {each.turns[0].input_tokens for each in arrivals} == {2048}
    assert len({each.turns[0].pieces[:2] for each in arrivals}) == 1
    assert len({each.turns[0].pieces[2:] for each in arrivals}) == 20


async def test_texts_have_no_pieces_that_could_not_fill_a_block(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    await slo_export(str(path), "--trace", "sample:sharegpt", "--length-scale", "0.3", "--requests", "5")
    assert all(turn.text for each in read_mooncake(path) for turn in each.turns)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--concurrency", "2"), 2, "no times"),
        (("--trace", "sample:mooncake", "--length-scale", "0.1"), 1, "pieces of 51 tokens"),
        (("--trace", "sample:none"), 2, "there is no sample 'none'"),
    ],
)
async def test_what_cannot_be_written_is_refused_by_name(
    tmp_path: Path, flags: tuple[str, ...], code: int, said: str
) -> None:
    assert said in await slo_export(str(tmp_path / "w.jsonl"), *flags, code=code)
    assert not (tmp_path / "w.jsonl").exists()
