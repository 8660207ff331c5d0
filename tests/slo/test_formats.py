"""Recordings: what each format means, a malformed line named with its field, and ours come back as written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pagewire.slo.load.pieces import Vocabulary, tokens_of
from pagewire.slo.workloads import samples
from pagewire.slo.workloads.arrival import Arrival, Turn
from pagewire.slo.workloads.formats.fields import TraceError
from pagewire.slo.workloads.formats.mooncake import read_mooncake, write_mooncake
from pagewire.slo.workloads.formats.sharegpt import read_sharegpt
from pagewire.slo.workloads.formats.tables import read_azure, read_burstgpt
from pagewire.slo.workloads.made_up import Lengths, PrefixTree, Shape, made_up
from pagewire.slo.workloads.processes import Process
from pagewire.slo.workloads.transforms import resized, retimed
from pagewire.slo.workloads.workload import Workload

Reader = Callable[[Path], Workload]
READERS: dict[str, Reader] = {
    "mooncake": read_mooncake, "azure": read_azure, "burstgpt": read_burstgpt, "sharegpt": read_sharegpt,
}  # fmt: skip
WORDS = Vocabulary()


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def line(**changed: object) -> str:
    row = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]} | changed
    return json.dumps({name: value for name, value in row.items() if value is not None})


def test_mooncake_ids_become_shared_prefixes(tmp_path: Path) -> None:
    rows = [
        line(timestamp=100),
        line(timestamp=1600, input_length=1100, hash_ids=[1, 2, 3]),
        line(timestamp=1700, hash_ids=[9, 2]),
    ]
    a, b, c = workload = [*read_mooncake(written(tmp_path, "t.jsonl", "\n".join(rows)))]
    assert [arrival.at_s for arrival in workload] == pytest.approx([0.0, 1.5, 1.6])
    one, two, other = (tokens_of(each.turns[0], 512, seed=0, vocabulary=WORDS) for each in (a, b, c))
    assert (len(one), len(two)) == (600, 1100)
    assert one == two[:600]
    assert one[:512] != other[:512]
    assert one[512:] == other[512:]  # equal ids are equal tokens, wherever they stand


def test_tokens_depend_on_the_seed_and_nothing_else(tmp_path: Path) -> None:
    (arrival,) = read_mooncake(written(tmp_path, "t.jsonl", line()))
    drawn = tokens_of(arrival.turns[0], 512, seed=1, vocabulary=WORDS)
    assert drawn == tokens_of(arrival.turns[0], 512, seed=1, vocabulary=WORDS)
    assert drawn != tokens_of(arrival.turns[0], 512, seed=2, vocabulary=WORDS)
    assert all(WORDS.low <= token < WORDS.high for token in drawn)
    assert drawn[:4] == (22461, 7858, 6304, 395)  # on every machine, from one version to the next


def test_mooncake_sessions(tmp_path: Path) -> None:
    later = line(timestamp=None, delay=250, session_id="s", input_length=7, hash_ids=[5])
    (arrival,) = read_mooncake(written(tmp_path, "t.jsonl", line(session_id="s") + "\n" + later))
    assert [(turn.input_tokens, turn.think_s) for turn in arrival.turns] == [(600, 0.0), (7, 0.25)]
    assert arrival.prompt_tokens(1) == 600 + 5 + 7


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ("{", ""),
        ("[1]", ""),
        ('{"timestamp": 1e999}', "timestamp"),
        (line(timestamp=None), "timestamp"),
        (line(timestamp=-1), "timestamp"),
        (line(timestamp="soon"), "timestamp"),
        (line(input_length=0), "input_length"),
        (line(input_length=1.5), "input_length"),
        (line(input_length=True), "input_length"),
        (line(input_length=10**12), "input_length"),
        (line(output_length=-1), "output_length"),
        (line(hash_ids=[1]), "hash_ids"),
        (line(hash_ids=[1, "2"]), "hash_ids"),
        (line(hash_ids=[1, -2]), "hash_ids"),
        (line(hash_ids=[1, True]), "hash_ids"),
        (line(hash_ids=7), "hash_ids"),
        (line(hash_ids=None), "hash_ids"),
        (line(delay=5, session_id="nobody"), "session_id"),
        (line(delay=5), "session_id"),
        (line(text_input=""), "text_input"),
    ],
)
def test_a_malformed_line_of_mooncakes_is_named(tmp_path: Path, bad: str, field: str) -> None:
    with pytest.raises(TraceError, match=r"^t\.jsonl, line 3") as caught:
        read_mooncake(written(tmp_path, "t.jsonl", f"{line()}\n\n{bad}\n{line()}"))
    assert (caught.value.line, caught.value.field) == (3, field)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(line().encode() + b'\n{"timestamp": "\xff"}')
    with pytest.raises(TraceError, match="line 2"):
        read_mooncake(path)
    path.write_bytes(b'[\n{"id": "\xff"}]')
    with pytest.raises(TraceError, match="line 2"):
        read_sharegpt(path)


def test_azure(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0799600,3180,0\n"
    )
    first, second = read_azure(written(tmp_path, "a.csv", text))
    assert first.at_s == 0.0
    assert second.at_s == pytest.approx(0.1, abs=1e-6)
    assert (first.turns[0].input_tokens, first.turns[0].output_tokens) == (4808, 10)
    assert second.turns[0].output_tokens == 1
    assert not set(first.turns[0].pieces) & set(second.turns[0].pieces)
    aware = text.replace("9600,", "9600+00:00,")
    assert [each.turns for each in read_azure(written(tmp_path, "b.csv", aware))] == [first.turns, second.turns]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("yesterday,5,5", "TIMESTAMP"),
        (",5,5", "TIMESTAMP"),
        ("2023-11-16 18:17:03,x,5", "ContextTokens"),
        ("2023-11-16 18:17:03,0,5", "ContextTokens"),
        ("2023-11-16 18:17:03,5,-5", "GeneratedTokens"),
        ("2023-11-16 18:17:03,5", "GeneratedTokens"),
    ],
)
def test_a_malformed_line_of_azures_is_named(tmp_path: Path, row: str, field: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,5\n{row}\n"
    with pytest.raises(TraceError) as caught:
        read_azure(written(tmp_path, "a.csv", text))
    assert (caught.value.line, caught.value.field) == (3, field)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_azure(written(tmp_path, "a.csv", "TIMESTAMP,Context\n"))
    assert (caught.value.line, caught.value.field) == (1, "ContextTokens")
    with pytest.raises(TraceError) as caught:
        read_burstgpt(written(tmp_path, "empty.csv", ""))
    assert (caught.value.line, caught.value.field) == (1, "Timestamp")


BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_leaves_out_what_failed(tmp_path: Path) -> None:
    rows = "5,ChatGPT,472,18,490,API log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    first, second = read_burstgpt(written(tmp_path, "b.csv", BURSTGPT + rows))
    assert (first.at_s, second.at_s) == (0.0, 113.0)
    assert (second.turns[0].input_tokens, second.turns[0].output_tokens) == (417, 276)


def test_nothing_else_is_asked_of_a_row_of_burstgpts_that_failed(tmp_path: Path) -> None:
    rows = "5,ChatGPT,472,18,490,API log\n45,ChatGPT,0,0,0,API log\n,ChatGPT,,0,,API log\n118,GPT-4,417,276,693,l\n"
    alone = "5,ChatGPT,472,18,490,API log\n118,GPT-4,417,276,693,l\n"
    whole, answered = (written(tmp_path, name, BURSTGPT + told) for name, told in (("b.csv", rows), ("a.csv", alone)))
    assert [*read_burstgpt(whole)] == [*read_burstgpt(answered)]


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ("nan,m,1,1,2,l", "Timestamp"),
        ("-1,m,1,1,2,l", "Timestamp"),
        ("1,m,,1,2,l", "Request tokens"),
        ("1,m,0,1,1,l", "Request tokens"),
        ("1,m,1,1.5,2,l", "Response tokens"),
        ("1,m,0,,0,l", "Response tokens"),
    ],
)
def test_a_malformed_line_of_burstgpts_is_named(tmp_path: Path, row: str, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_burstgpt(written(tmp_path, "b.csv", f"{BURSTGPT}1,m,1,1,2,l\n{row}\n"))
    assert (caught.value.line, caught.value.field) == (3, field)


def talk(*said: tuple[str, str]) -> dict[str, object]:
    return {"id": "t", "conversations": [{"from": who, "value": text} for who, text in said]}


def test_sharegpt_conversations_are_sessions(tmp_path: Path) -> None:
    talks = [
        talk(
            ("gpt", "hello"),
            ("system", "Be brief."),
            ("human", "What is a tide?"),
            ("gpt", "x" * 40),
            ("human", "Why?"),
            ("gpt", "y" * 8),
            ("human", "!"),
        ),
        talk(("gpt", "nobody asked")),
    ]
    (arrival,) = read_sharegpt(written(tmp_path, "s.json", json.dumps(talks)), think_s=3.0)
    assert [(turn.text, turn.output_tokens, turn.think_s) for turn in arrival.turns] == [
        ("Be brief.\nWhat is a tide?", 10, 0.0),
        ("Why?", 2, 3.0),
    ]


GOOD_TALK = json.dumps(talk(("human", "a"), ("gpt", "b")))


@pytest.mark.parametrize(
    ("text", "line", "field"),
    [
        ("{}", 1, ""),
        ("", 1, ""),
        ("[\n1]", 2, ""),
        (f"[{GOOD_TALK},\n\n {{]", 3, ""),
        (f"[{GOOD_TALK},\n]", 2, ""),
        (f"[{GOOD_TALK}\n{GOOD_TALK}]", 2, ""),
        (f"[{GOOD_TALK}\n", 2, ""),
        (f'[\n{GOOD_TALK},\n{{"id": 1}}]', 3, "conversations"),
        (f'[\n{GOOD_TALK},\n{{"conversations": [5]}}]', 3, "conversations[0]"),
        (f"[\n{json.dumps(talk(('human', 'a'), ('robot', 'b')))}]", 2, "conversations[1].from"),
        ('[{"conversations": [{"from": "human"}]}]', 1, "conversations[0].value"),
    ],
)
def test_a_malformed_conversation_is_named(tmp_path: Path, text: str, line: int, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_sharegpt(written(tmp_path, "s.json", text))
    assert (caught.value.line, caught.value.field) == (line, field)


@pytest.mark.parametrize("name", READERS)
def test_a_recording_without_requests_is_an_error(tmp_path: Path, name: str) -> None:
    head = {
        "mooncake": "\n",
        "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "burstgpt": BURSTGPT,
        "sharegpt": "[]",
    }
    with pytest.raises(ValueError, match="has no requests"):
        READERS[name](written(tmp_path, "none", head[name]))


@pytest.mark.parametrize("name", READERS)
def test_samples_are_as_their_generator_writes_them(tmp_path: Path, name: str) -> None:
    samples.write(tmp_path)
    shipped = samples.sample(name)
    assert (tmp_path / shipped.name).read_bytes() == shipped.read_bytes()
    arrivals = [*READERS[name](shipped)]
    assert len(arrivals) > 30
    assert all(arrival.turns[0].input_tokens > 0 for arrival in arrivals)


def test_the_mooncake_sample_shares_prefixes() -> None:
    arrivals = [*read_mooncake(samples.sample("mooncake"))]
    assert len({arrival.turns[0].pieces[0] for arrival in arrivals}) == 1
    assert len({arrival.turns[0].pieces[:2] for arrival in arrivals if len(arrival.turns[0].pieces) > 1}) < len(
        arrivals
    )


def sharing(workload: Workload) -> list[list[int]]:
    """Return of each pair of prompts how many tokens they share."""
    prompts = [tokens_of(each.turns[0], workload.piece_tokens, seed=0, vocabulary=WORDS) for each in workload]
    return [
        [next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))) for b in prompts]
        for a in prompts
    ]


def test_what_is_exported_comes_back(tmp_path: Path) -> None:
    shape = Shape(
        input=Lengths(900, 3000), output=Lengths(1, 9), tree=PrefixTree(share=0.6, depth=2, branches=2),
        turns=Lengths(1, 3), later_input=Lengths(20, 700), think_s=1.0,
    )  # fmt: skip
    made = retimed(made_up("m", shape, num_arrivals=12, seed=3), Process(rate=1.0), 3)
    write_mooncake(made, tmp_path / "m.jsonl")
    back = read_mooncake(tmp_path / "m.jsonl")
    begin_s = next(iter(made)).at_s
    for ours, theirs in zip(made, back, strict=True):
        assert theirs.at_s == pytest.approx(ours.at_s - begin_s, abs=2e-3)
        assert [(t.input_tokens, t.output_tokens) for t in theirs.turns] == [
            (t.input_tokens, t.output_tokens) for t in ours.turns
        ]
        assert [t.think_s for t in theirs.turns] == pytest.approx([t.think_s for t in ours.turns], abs=1e-3)
    for ours_row, theirs_row in zip(sharing(made), sharing(back), strict=True):
        # Whole blocks of 512 tokens remain shared; what is shared of one that is not whole cannot be said.
        assert [shared // 512 for shared in theirs_row] == [shared // 512 for shared in ours_row]


def test_a_recording_exported_again_is_the_same(tmp_path: Path) -> None:
    write_mooncake(read_mooncake(samples.sample("mooncake")), tmp_path / "once.jsonl")
    write_mooncake(read_mooncake(tmp_path / "once.jsonl"), tmp_path / "twice.jsonl")
    assert (tmp_path / "once.jsonl").read_text() == (tmp_path / "twice.jsonl").read_text()


def test_a_block_that_is_not_full_has_an_id_of_its_own(tmp_path: Path) -> None:
    turns = [Turn(input_tokens=100, output_tokens=1, pieces=(4,)), Turn(input_tokens=512, output_tokens=1, pieces=(4,))]
    workload = Workload(name="w", source=lambda: [Arrival(at_s=0.0, turns=(turn,)) for turn in turns])
    write_mooncake(workload, tmp_path / "w.jsonl")
    partial, full = (json.loads(row)["hash_ids"] for row in (tmp_path / "w.jsonl").read_text().splitlines())
    assert partial != full


def test_pieces_that_do_not_fill_a_block_cannot_be_exported(tmp_path: Path) -> None:
    odd = resized(read_mooncake(samples.sample("mooncake")), 0.1)
    with pytest.raises(ValueError, match="pieces of 51 tokens"):
        write_mooncake(odd, tmp_path / "w.jsonl")


def test_texts_are_exported_as_texts(tmp_path: Path) -> None:
    talks = read_sharegpt(samples.sample("sharegpt"), think_s=2.0)
    write_mooncake(talks, tmp_path / "w.jsonl")
    assert [each.turns for each in read_mooncake(tmp_path / "w.jsonl")] == [each.turns for each in talks]
