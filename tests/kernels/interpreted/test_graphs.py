"""A whole engine over Triton's ops, its steps replayed: the tokens are those of torch's ops, step by step.

Sequences join and leave, lengths cross blocks, batches pass from bucket to bucket with rows of nobody between. Every
slot of the pool that holds no token is NaN, the scratch rows of the pool too. It cannot show what only a GPU does: that
nothing waits or allocates within a capture.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from pathlib import Path
from typing import Any
from unittest import mock

import engine_runs
import lora_folders
import pytest
import tiny_model
import torch
from engine_runs import greedy, spec
from guesses import Guesses
from recorded_capture import RecordedCapture

from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import assembly, model_runner
from pagewire.engine.assembly import Engine
from pagewire.engine.batch import Batch
from pagewire.engine.block import table_of
from pagewire.engine.engine_loop import EngineLoop
from pagewire.engine.graph_limits import Bucket, GraphLimits
from pagewire.engine.graph_pool import GraphPool, Replayed
from pagewire.engine.packed_batch import pack
from pagewire.engine.sequence import Sequence
from pagewire.engine.step import AHEAD, Draw, Grant, Scoring, Step
from pagewire.kernels.backend import Backend
from pagewire.kernels.gpu import small_linear
from pagewire.kernels.gpu.tiles import Processor
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

BLOCK, LONGEST, SEQUENCES, LAYERS = 16, 64, 6, 3
CPU = torch.device("cpu")


def triton() -> TritonBackend:
    return TritonBackend(CPU, Processor((9, 0), 2))


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """Have products cut into larger tiles than a processor would hold: the interpreter takes its time for each."""
    with mock.patch.object(small_linear.Tile, "choose", return_value=small_linear.Tile(rows=128, lanes=32, depth=1)):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose heads are normed."""
    return tiny_model.build(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="module", params=["normed heads", "windows and biases"])
def each_folder(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return that model, and one that has what it has not, for what depends on what a model launches."""
    is_first = request.param == "normed heads"
    return folder if is_first else tiny_model.build(tmp_path_factory.mktemp("qwen2"), "qwen2_sliding")


def engine_of(folder: Path, backend: Backend, layer_groups: int = 1, adapters: Listed[str] = ()) -> Engine:
    """Return an engine over a backend, whose pool is NaN."""
    with mock.patch.object(assembly, "backend_for", return_value=backend):
        engine = engine_runs.engine(
            folder, block_size=BLOCK, chunk_size=16, max_model_len=LONGEST, max_num_seqs=SEQUENCES,
            kv_memory_bytes=1 << 20, layer_groups=layer_groups, adapters=adapters,
        )  # fmt: skip
    engine.cache.pool.fill_(torch.nan)
    return engine


def graphed(engine: Engine, capture: RecordedCapture, longest_step: int = 0) -> GraphPool:
    """Give an engine's runner graphs, captured now, and packed batches."""
    runner = engine.runner
    graphs = GraphPool(
        runner._model, engine.cache.pool, triton(), capture,
        GraphLimits(
            max_num_seqs=SEQUENCES, max_model_len=LONGEST, block_size=BLOCK, vocab_size=engine.ready.vocab_size,
            longest_step=longest_step,
        ),
    )  # fmt: skip
    graphs.warm_up()
    runner.graphs, runner._batch_of = graphs, pack
    return graphs


def specs() -> list[SequenceSpec]:
    """Return greedy and random sequences that end at different times, of prompts of one and several chunks."""
    lengths, outputs = (7, 21, 8, 1, 15, 16, 3), (6, 3, 10, 5, 2, 9, 4)
    prompts = [[(31 * i + 7 * at * at) % 250 for at in range(length)] for i, length in enumerate(lengths)]
    ways = [
        greedy(6), greedy(3, temperature=0.8, seed=5), greedy(10, temperature=1.2, top_k=20, seed=6),
        greedy(5, temperature=1.0, top_p=0.8, seed=7), greedy(2, logprobs=2), greedy(9),
        greedy(4, temperature=1.0, min_p=0.1, seed=8),
    ]  # fmt: skip
    assert [way.max_tokens for way in ways] == list(outputs)
    return [spec(str(i), prompt, way) for i, (prompt, way) in enumerate(zip(prompts, ways, strict=True))]


def run(loop: EngineLoop) -> dict[str, list[int]]:
    heard = engine_runs.run_all(loop, specs())
    assert all(end.error is None for end in heard.ends.values()), heard.ends
    return heard.tokens


def test_what_is_captured_writes_to_no_block(folder: Path) -> None:
    engine, capture = engine_of(folder, triton()), RecordedCapture(warms_up=True)
    graphed(engine, capture, longest_step=64)
    assert capture.captures == 10  # five of decodes, as many of others
    assert bool(engine.cache.pool.isnan().all())


def test_tokens_are_those_of_torch_with_graphs_and_without(each_folder: Path) -> None:
    expected = run(engine_of(each_folder, TorchBackend()).loop)
    eager = engine_of(each_folder, triton())
    eager.runner._batch_of = pack
    assert run(eager.loop) == expected

    engine, capture = engine_of(each_folder, triton()), RecordedCapture()
    graphs = graphed(engine, capture)
    assert capture.captures == 5  # of 1, 2, 3, 4 and 6
    assert run(engine.loop) == expected
    assert capture.replays >= 5
    assert graphs.num_recaptures == engine.runner.num_recaptures == 0

    engine = engine_of(each_folder, triton())
    graphed(engine, RecordedCapture())
    engine.loop._launcher, launched = engine.runner, list[Step]()
    with mock.patch.object(GraphPool, "run", autospec=True, side_effect=_noting(launched)):
        assert run(engine.loop) == expected
    assert any(step.grants[0].tokens[0] == AHEAD for step in launched), "no step was begun ahead"


def test_chunks_are_replayed_and_say_the_same(each_folder: Path) -> None:
    """Prompts one after another: of every bucket, in one chunk and in several."""
    lengths = (1, 4, 9, 16, 17, 40, 60)
    asked = [spec(str(length), [(7 * at + length) % 250 for at in range(length)], greedy(3)) for length in lengths]
    plain, engine, capture = engine_of(each_folder, TorchBackend()), engine_of(each_folder, triton()), RecordedCapture()
    graphed(engine, capture, longest_step=64)
    for one in asked:
        replays = capture.replays
        heard = engine_runs.run_all(engine.loop, [one])
        assert heard.tokens == engine_runs.run_all(plain.loop, [one]).tokens
        # Of 16 tokens at most: of 40 and 60 it takes several.
        assert capture.replays - replays == -(-len(one.tokens) // 16) + 2


@pytest.mark.parametrize("is_ahead", [False, True])
def test_adapters_come_and_go_beside_graphs(folder: Path, tmp_path: Path, is_ahead: bool) -> None:
    """Steps that have one are computed eagerly, the others replayed; tokens are those of torch."""
    adapters = [f"{kind}={lora_folders.build(folder, tmp_path / kind, kind)}" for kind in ("all", "patterns")]
    names = {"1": "all", "4": "patterns"}  # who end before the others
    asked = [spec(one.request_id, one.tokens, one.sampling, adapter=names.get(one.request_id, "")) for one in specs()]
    expected = engine_runs.run_all(engine_of(folder, TorchBackend(), adapters=adapters).loop, asked).tokens
    assert expected != run(engine_of(folder, TorchBackend()).loop)
    engine, capture = engine_of(folder, triton(), adapters=adapters), RecordedCapture()
    graphed(engine, capture, longest_step=64)
    if is_ahead:
        engine.loop._launcher = engine.runner
    before = capture.replays
    assert engine_runs.run_all(engine.loop, asked).tokens == expected
    assert capture.replays > before, "no step was without adapters"


@pytest.mark.parametrize("is_ahead", [False, True])
def test_chunks_and_decodes_are_replayed_together(folder: Path, is_ahead: bool) -> None:
    """Sequences join while others decode; no step is computed eagerly, and some are begun ahead of a mixed one."""
    expected = run(engine_of(folder, TorchBackend()).loop)
    engine, steps = engine_of(folder, triton()), list[tuple[Step, Bucket]]()
    graphs = graphed(engine, RecordedCapture(), longest_step=64)
    if is_ahead:
        engine.loop._launcher = engine.runner
    run_graph = graphs.run

    def noted(step: Step, bucket: Bucket, finish: Callable[[], None]) -> Replayed:
        steps.append((step, bucket))
        return run_graph(step, bucket, finish)

    with (
        mock.patch.object(graphs, "run", noted),
        mock.patch.object(engine.runner, "_compute", side_effect=AssertionError("a step was computed eagerly")),
    ):
        assert run(engine.loop) == expected
    mixed = [step for step, bucket in steps if not bucket.are_decodes]
    assert any({len(grant.tokens) == 1 for grant in step.grants} == {False, True} for step in mixed)
    assert any(grant.draw is None for step in mixed for grant in step.grants)
    follows = [after for (before, _), (after, _) in itertools.pairwise(steps) if before in mixed]
    assert any(step.grants[0].tokens[0] == AHEAD for step in follows) is is_ahead
    assert graphs.num_recaptures == 0


def test_a_mixture_is_the_batch(folder: Path) -> None:
    """Row by row, of chunks and decodes, some of which draw; what is left over is nobody's and holds no token."""
    graphs = graphed(engine_of(folder, triton()), RecordedCapture(), longest_step=64)
    draw = Draw(sampling=greedy(3, temperature=0.7, seed=9), index=2, position=4)
    grants = (
        Grant(request_id="a", tokens=(4, 5, 6), start=14, block_ids=table_of((3, 9)), draw=draw),
        Grant(request_id="b", tokens=(7,), start=33, block_ids=table_of((1, 8, 2)), draw=draw),
        Grant(request_id="c", tokens=tuple(range(20)), start=0, block_ids=table_of((5, 6)), draw=None),
        Grant(request_id="d", tokens=(3,), start=0, block_ids=table_of((4,)), draw=draw, seal=True),
    )
    step = Step(grants=grants)
    bucket = graphs.bucket_of(step)
    assert bucket == Bucket(32, SEQUENCES, are_decodes=False)
    graphs._table.memory.fill_(-(1 << 40))
    replayed = graphs.run(step, bucket)
    found, expected = graphs._inputs[bucket].batch, pack(step, BLOCK, CPU)
    for name in ("token_ids", "positions", "slots"):
        assert getattr(found, name)[:25].tolist() == getattr(expected, name).tolist(), name
    assert found.slots[25:].tolist() == [-1] * 7
    assert found.logit_rows is not None
    assert expected.logit_rows is not None
    assert found.logit_rows[:3].tolist() == expected.logit_rows.tolist()
    assert list(replayed.batch.draws) == ["a", "b", "d"]
    assert found.ragged.num_rows == 32
    ours, theirs = found.ragged.on_device, expected.ragged.on_device
    assert ours is not None
    assert theirs is not None
    assert ours.query_starts.tolist() == [*theirs.query_starts.tolist(), 25, 25, 32]
    assert ours.kv_lens.tolist() == [*theirs.kv_lens.tolist(), 0, 0, 0]
    for row, grant in enumerate(grants):
        assert found.ragged.block_table[row, : len(grant.block_ids)].tolist() == list(grant.block_ids)
    columns = graphs._inputs[bucket].columns
    assert columns.floats[0].tolist() == [0.7] * 3 + [0.0] * 3
    assert columns.integers[1:].tolist() == [[9] * 3 + [0] * 3, [2] * 3 + [0] * 3, [4] * 3 + [0] * 3]


def test_drafts_are_replayed_with_whatever_is_beside_them(folder: Path) -> None:
    """Where there are as many rows for what is drawn as there may be sequences; else they are computed eagerly."""
    expected = run(engine_of(folder, TorchBackend()).loop)
    engine, steps = engine_of(folder, triton()), list[Step]()
    graphs = graphed(engine, RecordedCapture(), longest_step=64)
    engine.loop._launcher = engine.runner

    def said_by(sequence: Sequence, place: int) -> int:
        return expected[sequence.request_id][place]

    engine.scheduler.speculation = speculation = Guesses(2, said_by, wrong=7)
    with mock.patch.object(GraphPool, "run", _noting(steps)):
        assert run(engine.loop) == expected
    assert 0 < speculation.num_accepted < speculation.num_drafted
    assert any(grant.checks for step in steps for grant in step.grants)
    assert any(any(not grant.checks and len(grant.tokens) > 1 for grant in step.grants) for step in steps)
    assert not any(grant.tokens[0] == AHEAD for step in steps for grant in step.grants)
    drafted = dataclasses.replace(decode("a", 9, (1,), greedy(5)), tokens=(9, 3, 4))
    draws = tuple(Draw(sampling=greedy(5), index=0, position=place) for place in (10, 11))
    drafted = dataclasses.replace(drafted, checks=draws)
    other = dataclasses.replace(drafted, request_id="b", block_ids=table_of((2,)))
    assert graphs.bucket_of(Step(grants=(drafted, other))) == Bucket(32, SEQUENCES, are_decodes=False)
    third = dataclasses.replace(drafted, request_id="c", block_ids=table_of((3,)))
    assert graphs.bucket_of(Step(grants=(drafted, other, third))) is None, "9 tokens are drawn"


def test_what_leaves_the_pod_is_sealed_before_its_token_is_waited_for(folder: Path) -> None:
    """A step is over once its token is read, so whatever it does on the device comes before that is sent."""
    engine, order = engine_of(folder, triton()), list[str]()
    graphed(engine, RecordedCapture(), longest_step=64)
    zero_slots, send_tokens = TritonBackend.zero_slots, TritonBackend.send_tokens

    def zero(*args: Any) -> None:
        order.append("sealed")
        zero_slots(*args)

    def send(*args: Any) -> Callable[[], list[int]]:
        order.append("sent")
        return send_tokens(*args)

    draw = Draw(sampling=greedy(1), index=0, position=0)
    grant = Grant(request_id="a", tokens=tuple(range(12)), start=0, block_ids=table_of((1,)), draw=draw, seal=True)
    with mock.patch.object(TritonBackend, "zero_slots", zero), mock.patch.object(TritonBackend, "send_tokens", send):
        for compute in (engine.runner.run, lambda step, _on_group: engine.runner.launch(step)()):  # type: ignore[misc]
            assert compute(Step(grants=(grant,)), lambda _step, _group: None)["a"].token is not None
            assert order == ["sealed", "sent"]
            order.clear()
    assert bool((engine.cache.pool[1, :, :, :, 12:] == 0).all())


def test_what_leaves_by_groups_of_layers_is_not_replayed(folder: Path) -> None:
    """Nobody would be told of them."""
    engine, told = engine_of(folder, triton(), layer_groups=LAYERS), list[int]()
    graphed(engine, RecordedCapture(), longest_step=64)
    draw = Draw(sampling=greedy(1), index=0, position=0)
    grant = Grant(request_id="a", tokens=tuple(range(12)), start=0, block_ids=table_of((1,)), draw=draw, seal=True)
    step = Step(grants=(grant,))
    assert engine.runner.launch(step) is None
    assert engine.runner.run(step, lambda _step, group: told.append(group))["a"].token is not None
    assert told == list(range(LAYERS))


def test_what_asks_for_more_than_a_token_is_computed_eagerly(folder: Path) -> None:
    graphs = graphed(engine_of(folder, triton()), RecordedCapture(), longest_step=64)
    one = Grant(request_id="a", tokens=tuple(range(12)), start=0, block_ids=table_of((1,)), draw=None)
    assert graphs.bucket_of(Step(grants=(one,))) == Bucket(16, 1, are_decodes=False)
    other = dataclasses.replace(one, request_id="b", block_ids=table_of((2,)))
    assert graphs.bucket_of(Step(grants=(one, other))) == Bucket(32, SEQUENCES, are_decodes=False)
    draw = Draw(sampling=greedy(1), index=0, position=0)
    changed: tuple[dict[str, Any], ...] = (
        {"tokens": (1,) * 65},
        {"spilled": (0,)},
        {"adapter": 1},
        {"scoring": Scoring(first_row=0, targets=(1,), num_top=0)},
        {"draw": draw, "forks": (draw,)},
        {"draw": dataclasses.replace(draw, num_candidates=2)},
        {"block_ids": table_of(range(9))},
    )
    for changes in changed:
        assert graphs.bucket_of(Step(grants=(dataclasses.replace(one, **changes),))) is None, changes
    assert graphs.bucket_of(Step(grants=(one,) * 7)) is None
    assert graphs.bucket_of(Step(grants=(one,) * 6)) is None, "72 tokens"


def _noting(steps: list[Step]) -> Callable[..., Replayed]:
    run = GraphPool.run

    def noted(graphs: GraphPool, step: Step, *rest: Any) -> Replayed:
        steps.append(step)
        return run(graphs, step, *rest)

    return noted


def decode(name: str, at: int, blocks: tuple[int, ...], sampling: SamplingParams) -> Grant:
    draw = Draw(sampling=sampling, index=0, position=at)
    return Grant(request_id=name, tokens=(at % 250,), start=at, block_ids=table_of(blocks), draw=draw)


def test_a_replay_reads_its_static_inputs_and_the_pool_alone(folder: Path) -> None:
    """The numbers of an earlier step, wherever they may still lie, are gone before the next is replayed."""
    engine = engine_of(folder, triton())
    engine.cache.pool.normal_()
    graphs = graphed(engine, RecordedCapture())
    before = engine.cache.pool.clone()

    def compute(runner: model_runner.ModelRunner, grants: tuple[Grant, ...]) -> dict[str, int | None]:
        engine.cache.pool.copy_(before)
        return {name: one.token for name, one in runner.run(Step(grants=grants), lambda _step, _group: None).items()}

    plain = engine_of(folder, TorchBackend())
    a, b, c = (decode(name, at, blocks, greedy(99)) for name, at, blocks in (
        ("a", 20, (3, 1)), ("b", 8, (2,)), ("c", 39, (11, 12, 13)),
    ))  # fmt: skip
    moved = decode("c", 39, (21, 12, 4), greedy(99))
    longer = decode("b", 16, (2, 9), greedy(99))
    for grants in ((a, b, c), (c, b, a), (b,), (c, b), (moved, a), (longer, a, c), (c,)):
        graphs._logits.fill_(torch.nan)
        graphs._tokens.fill_(-7)
        graphs._table.memory.fill_(-(1 << 40))
        found = compute(engine.runner, grants)
        written = engine.cache.pool.clone()
        plain.cache.pool.copy_(before)
        expected = plain.runner.run(Step(grants=grants), lambda _step, _group: None)
        assert found == {name: one.token for name, one in expected.items()}
        torch.testing.assert_close(written, plain.cache.pool, rtol=1e-3, atol=1e-3)
        # Nothing but the new slots was touched.
        changed = (written != before).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == sorted(grant.block_ids[grant.start // BLOCK] for grant in grants)


def test_without_chunks_only_decodes_are_replayed(folder: Path) -> None:
    engine, capture = engine_of(folder, triton()), RecordedCapture()
    graphs = graphed(engine, capture)
    one = decode("a", 3, (1,), greedy(9))
    assert graphs.bucket_of(Step(grants=(one,))) == Bucket(1, 1, are_decodes=True)
    for changes in ({"tokens": (1, 2)}, {"draw": None}, {"seal": True}):
        assert graphs.bucket_of(Step(grants=(dataclasses.replace(one, **changes),))) is None, changes  # type: ignore[arg-type]
    assert graphs.bucket_of(Step(grants=(one,) * 7)) is None


def test_a_bucket_that_was_not_captured_is_counted(folder: Path) -> None:
    engine, capture = engine_of(folder, triton()), RecordedCapture()
    graphs = graphed(engine, capture)
    only = Bucket(1, 1, are_decodes=True)
    del graphs._graphs[only]
    engine.cache.pool.zero_()
    graphs.run(Step(grants=(decode("a", 3, (1,), greedy(9)),)), only)
    assert (graphs.num_recaptures, capture.captures) == (1, 6)


def test_a_failed_upload_leaves_nothing_believed(folder: Path) -> None:
    engine = engine_of(folder, triton())
    graphs = graphed(engine, RecordedCapture())
    engine.cache.pool.normal_()
    good = decode("a", 20, (3, 1), greedy(9))
    bad = Grant(request_id="a", tokens=(1 << 70,), start=20, block_ids=table_of((3, 1)), draw=good.draw)
    with pytest.raises(OverflowError, match="too large"):
        graphs.run(Step(grants=(bad,)), Bucket(1, 1, are_decodes=True))
    graphs.run(Step(grants=(good,)), Bucket(1, 1, are_decodes=True))
    assert graphs._table.blocks[0, :2].tolist() == [3, 1]


def test_a_packed_batch_is_the_batch() -> None:
    """Field by field, over chunks, decodes, draws of several sequences, scorings and tables of unequal length."""
    draw = Draw(sampling=greedy(3), index=0, position=0)
    fork = Draw(sampling=greedy(3), index=1, position=0)
    step = Step(
        grants=(
            Grant(request_id="a", tokens=(4, 5, 6), start=14, block_ids=table_of((3, 9, 4)), draw=draw, forks=(fork,),
                  scoring=Scoring(first_row=1, targets=(5, 6), num_top=1)),
            Grant(request_id="b", tokens=(7,), start=0, block_ids=table_of((1,)), draw=draw),
            Grant(request_id="c", tokens=tuple(range(20)), start=0, block_ids=table_of((5, 6, 2)), draw=None),
        )
    )  # fmt: skip
    found, expected = (build(step, BLOCK, CPU) for build in (pack, Batch.of))
    for name in ("token_ids", "positions", "slots", "logit_rows"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), name
        assert one.data_ptr() % 16 == 0
    assert (found.draws, found.scorings) == (expected.draws, expected.scorings)
    ours, theirs = found.ragged, expected.ragged
    assert (ours.query_lens, ours.kv_lens) == (theirs.query_lens, theirs.kv_lens)
    assert ours.block_table.tolist() == theirs.block_table.tolist()
    assert ours.on_device is not None
    assert ours.on_device.query_starts.tolist() == [*theirs.query_starts, theirs.num_rows]
    assert ours.on_device.kv_lens.tolist() == list(theirs.kv_lens)


@pytest.mark.parametrize("most", [1, 2, 3, 8, 9, 32, 33, 256])
def test_every_size_has_a_bucket(most: int) -> None:
    limits = GraphLimits(max_num_seqs=most, max_model_len=8, block_size=8, vocab_size=9)
    buckets = [bucket.num_sequences for bucket in limits.decodes()]
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == most
    assert all(any(size <= bucket < size + 8 for bucket in buckets) for size in range(1, most + 1))
