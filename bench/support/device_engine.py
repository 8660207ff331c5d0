"""The engine on a device: decode steps beside what memory allows, what lies between steps, many requests at once.

In this process, with weights of random numbers; nothing is asked twice. Under Triton's interpreter all of it runs on a
CPU with a tiny model, which shows that it works: its figures are nothing.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import random_models
import torch

from pagewire.core.block_hash import root_hash
from pagewire.core.clock import MonotonicClock
from pagewire.core.engine_messages import Add
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams
from pagewire.core.sequence_spec import SequenceSpec
from pagewire.engine import assembly
from pagewire.engine.assembly import Engine, assemble, warm_up
from pagewire.engine.block import table_of
from pagewire.engine.config import EngineConfig
from pagewire.engine.graph_limits import GraphLimits
from pagewire.engine.graph_pool import GraphPool
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.step import Draw, Grant, Step

ROOT = root_hash(model_digest="bench", kv_fingerprint="bench")
TEMPERATURE = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured. A request is (prompt, tokens to generate)."""

    device: torch.device
    dtype: str
    decodes: tuple[tuple[int, int], ...]  # sequences, tokens of each
    chunks: tuple[int, ...]  # tokens of prompts
    beside: tuple[int, int]  # sequences that decode beside a prompt, tokens of each
    repeats: int
    idle: tuple[int, int]  # sequences, tokens of each
    num_requests: int
    lengths: tuple[int, int]  # of prompts and of outputs
    most_id: int
    kv_bytes: int
    max_model_len: int
    max_num_seqs: int
    peer_requests: int = 0  # of those that peers are given, the first ones
    weight_dtype: str = "auto"
    overlaps: bool = True  # whether kernels may start before the ones before them end

    @classmethod
    def full(cls, device: torch.device) -> Scale:
        """That of the targets."""
        free = torch.cuda.mem_get_info(device)[0]
        return cls(
            device=device, dtype="bfloat16", decodes=((1, 512), (1, 2048), (64, 2048)),
            chunks=(128, 512, 1024, 2048, 4096), beside=(48, 1024), repeats=30, idle=(64, 2048),
            num_requests=256, lengths=(100, 1024), most_id=10_000, kv_bytes=min(64 << 30, free * 6 // 10),
            max_model_len=4096, max_num_seqs=256,
        )  # fmt: skip

    @classmethod
    def tiny(cls) -> Scale:
        """That of a CPU under the interpreter."""
        return cls(
            device=torch.device("cpu"), dtype="float32", decodes=((1, 20), (3, 33)), chunks=(9, 33), beside=(2, 20),
            repeats=1, idle=(2, 18), num_requests=3, lengths=(4, 9), most_id=300, kv_bytes=1 << 20, max_model_len=64,
            max_num_seqs=4,
        )  # fmt: skip

    def requests(self) -> list[tuple[list[int], int]]:
        """Return the requests: all lengths of prompts drawn first, with their tokens, then all of outputs."""
        draw = random.Random(0)
        prompts = [
            [draw.randrange(3, self.most_id) for _ in range(draw.randint(*self.lengths))]
            for _ in range(self.num_requests)
        ]
        return [(prompt, draw.randint(*self.lengths)) for prompt in prompts]


def load(folder: Path, scale: Scale) -> Engine:
    """Return an engine over a model's folder, warm, its graphs captured. Off CUDA its ops are Triton's, interpreted."""
    config = EngineConfig(
        model=str(folder), role=Role.COLOCATED, dtype=scale.dtype, weight_dtype=scale.weight_dtype,
        kv_memory_bytes=scale.kv_bytes, max_num_seqs=scale.max_num_seqs,
        max_num_batched_tokens=max(8192, scale.max_num_seqs), chunk_size=4096,
        max_model_len=scale.max_model_len, prefix_caching=False, device=scale.device.type, threads=0,
    )  # fmt: skip
    with ExitStack() as stack:
        from pagewire.kernels.gpu.tiles import Processor  # noqa: PLC0415
        from pagewire.kernels.triton_backend import TritonBackend  # noqa: PLC0415

        own = Processor((9, 0), 2) if scale.device.type == "cpu" else Processor.of(scale.device)
        backend = TritonBackend(scale.device, replace(own, overlaps=own.overlaps and scale.overlaps))
        stack.enter_context(mock.patch.object(assembly, "backend_for", return_value=backend))
        engine = assemble(config, MonotonicClock())
        if scale.device.type == "cpu":
            engine.runner.graphs = _again(engine, backend, scale)
            engine.loop._launcher = engine.runner
    warm_up(engine)
    return engine


def _again(engine: Engine, backend: Any, scale: Scale) -> GraphPool:
    """Return graphs of which each is its work, done again: where nothing can be captured."""

    def capture(work: Any) -> Any:
        work()
        return work

    limits = GraphLimits(
        max_num_seqs=scale.max_num_seqs, max_model_len=scale.max_model_len,
        block_size=engine.cache.layout.block_size, vocab_size=engine.ready.vocab_size, longest_step=max(scale.chunks),
    )  # fmt: skip
    graphs = GraphPool(engine.runner._model, engine.cache.pool, backend, capture, limits)
    graphs.warm_up()
    return graphs


def decode_rows(name: str, folder: Path, engine: Engine, scale: Scale, found: dict[str, Any]) -> Iterator[Any]:
    """Yield for each batch the time of a replay, of a whole step, and of its roofline."""
    config = random_models.shape_of(folder)
    engine.cache.pool.normal_()
    weights = sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    embedding = config.vocab_size * config.hidden_size * engine.cache.pool.element_size()
    read = weights - (0 if config.tied_embeddings else embedding)
    flop = 2 * read / engine.cache.pool.element_size()  # of one row
    if scale.weight_dtype == "fp8":
        read -= _saved_by_codes(config, engine.cache.pool.element_size())
    for num_sequences, kv_len in scale.decodes:
        step = _decodes(engine, num_sequences, kv_len)
        kv = num_sequences * kv_len * engine.cache.layout.token_bytes
        least_s = max(read / found["copy-bytes-per-s"], num_sequences * flop / found["matmul-flop-per-s"])
        least_s += kv / found["copy-bytes-per-s"]
        step_s = statistics.median(_timed(lambda: engine.runner.run(step, _ignore)) for _ in range(scale.repeats))  # noqa: B023
        replay_s = _replay_s(engine, num_sequences, scale)
        yield {
            "what": "decode", "model": name, "weights": scale.weight_dtype, "sequences": num_sequences,
            "tokens": kv_len, "roofline-ms": least_s * 1e3, "replay-ms": replay_s * 1e3,
            "step-ms": step_s * 1e3, "roofline-over-replay": least_s / replay_s, "roofline-over-step": least_s / step_s,
        }  # fmt: skip


def chunk_rows(name: str, folder: Path, engine: Engine, scale: Scale, found: dict[str, Any]) -> Iterator[Any]:
    """Yield the time of a step of one chunk, alone and beside decodes, replayed where it is and kernel by kernel."""
    config, runner = random_models.shape_of(folder), engine.runner
    weights = sum(each.stat().st_size for each in folder.glob("*.safetensors")) // engine.cache.pool.element_size()
    weights -= config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    num_decodes, kv_len = scale.beside
    engine.cache.pool.normal_()  # decodes read what was there before
    for num_tokens, others in itertools.product(scale.chunks, (0, num_decodes)):
        ids = range(engine.cache.num_blocks)[-engine.cache.layout.num_blocks(num_tokens) :]
        draw = Draw(sampling=SamplingParams(temperature=TEMPERATURE, seed=1), index=0, position=num_tokens)
        tokens = tuple(3 + number % (scale.most_id - 3) for number in range(num_tokens))
        chunk = Grant(request_id="chunk", tokens=tokens, start=0, block_ids=table_of(ids), draw=draw)
        step = Step(grants=(*(_decodes(engine, others, kv_len, spared=len(ids)).grants if others else ()), chunk))
        graphs = runner.graphs
        row = {
            "what": "chunk", "model": name, "tokens": num_tokens, "decodes": others, "of-tokens": kv_len,
            "products-ms": 2 * weights * step.num_tokens / found["matmul-flop-per-s"] * 1e3,
            "is-replayed": graphs is not None and graphs.bucket_of(step) is not None,
        }  # fmt: skip
        for way, chosen in (("step-ms", graphs), ("eager-ms", None)):
            runner.graphs = chosen
            times = [_timed(lambda: runner.run(step, _ignore)) for _ in range(2 + -(-scale.repeats // 3))]  # noqa: B023
            row[way] = statistics.median(times[2:]) * 1e3
        runner.graphs = graphs
        yield row


def _saved_by_codes(config: DecoderConfig, itemsize: int) -> int:
    """Return how many bytes fewer the layers' matrices are as codes with a scale a row."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    matrices = ((q_size + 2 * kv_size, hidden), (hidden, q_size), (2 * inner, hidden), (hidden, inner))
    return config.num_layers * sum(rows * (columns * (itemsize - 1) - 4) for rows, columns in matrices)


def idle_row(name: str, engine: Engine, scale: Scale) -> dict[str, Any]:
    """Return what a step of the loop takes beyond its replay, sampling on: the device's idle time, near enough."""
    num_sequences, kv_len = scale.idle
    draw, steps = random.Random(1), 5 if scale.device.type == "cpu" else 100
    for number in range(num_sequences):
        prompt = [draw.randrange(3, scale.most_id) for _ in range(kv_len)]
        _add(engine, f"idle-{number}", prompt, 2 * steps)
    found: list[float] = []
    while len(found) < steps:
        started_s = time.perf_counter()
        done = engine.loop.step()
        elapsed_s = time.perf_counter() - started_s
        assert done is not None
        if len(done.records) == num_sequences and all(record.position > 0 for record in done.records):
            found.append(elapsed_s)
    replay_s = _replay_s(engine, num_sequences, scale)
    for number in range(num_sequences):
        engine.loop.abort(f"idle-{number}")
    engine.loop.step()
    step_s = statistics.median(found[-11:])  # as long as the replays' sequences, or nearly
    return {
        "what": "idle", "model": name, "sequences": num_sequences, "tokens": kv_len, "loop-step-ms": step_s * 1e3,
        "replay-ms": replay_s * 1e3, "idle-us": (step_s - replay_s) * 1e6,
    }  # fmt: skip


def requests_row(name: str, engine: Engine, scale: Scale) -> dict[str, Any]:
    """Return output tokens per second of all requests, given at once."""
    asked = scale.requests()
    _add(engine, "warm", asked[0][0], 2)
    _run(engine)
    started_s = time.perf_counter()
    for number, (prompt, max_tokens) in enumerate(asked):
        _add(engine, f"request-{number}", prompt, max_tokens)
    tokens = _run(engine)
    elapsed_s = time.perf_counter() - started_s
    wanted = sum(max_tokens for _, max_tokens in asked)
    if tokens != wanted:
        raise RuntimeError(f"{tokens} tokens were generated of {wanted}")
    return {
        "what": "requests", "model": name, "requests": len(asked), "prompt-tokens": sum(len(p) for p, _ in asked),
        "output-tokens": tokens, "seconds": elapsed_s, "tokens-per-s": tokens / elapsed_s,
        "graph-recaptures": engine.runner.num_recaptures,
    }  # fmt: skip


def _add(engine: Engine, name: str, prompt: list[int], max_tokens: int) -> None:
    seed = sum(name.encode())
    sampling = SamplingParams(max_tokens=max_tokens, temperature=TEMPERATURE, ignore_eos=True, seed=seed)
    engine.loop.add(Add(spec=SequenceSpec(request_id=name, tokens=tuple(prompt), sampling=sampling, root=ROOT)))


def _run(engine: Engine) -> int:
    """Step until nothing is left; return the tokens that came."""
    tokens = 0
    while (done := engine.loop.step()) is not None:
        tokens += sum(len(record.tokens) for record in done.records)
        for end in done.ends:
            if end.error is not None:
                raise RuntimeError(f"{end.request_id}: {end.error}")
    return tokens


def _decodes(engine: Engine, num_sequences: int, kv_len: int, spared: int = 0) -> Step:
    """Return a step of decodes in any blocks but the last `spared`."""
    of_each, num_blocks = engine.cache.layout.num_blocks(kv_len), engine.cache.num_blocks - spared
    if num_sequences * of_each > num_blocks:
        raise ValueError(f"{num_sequences} sequences of {kv_len} tokens are more than the pool holds")
    order = torch.randperm(num_blocks)[: num_sequences * of_each].view(num_sequences, of_each).tolist()
    grants = tuple(
        Grant(
            request_id=f"decode-{number}", tokens=(5 + number,), start=kv_len - 1, block_ids=table_of(ids),
            draw=Draw(sampling=SamplingParams(temperature=TEMPERATURE, seed=number), index=0, position=kv_len),
        )
        for number, ids in enumerate(order)
    )  # fmt: skip
    return Step(grants=grants)


def _replay_s(engine: Engine, num_sequences: int, scale: Scale) -> float:
    """Return the seconds of a replay after another, on the inputs of the last step."""
    graphs = engine.runner.graphs
    assert graphs is not None, "there are no graphs"
    replay = graphs.replay_of_decodes(num_sequences)
    with torch.inference_mode():
        if scale.device.type != "cuda":
            return _timed(replay)
        rounds = []
        for _ in range(5):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(scale.repeats):
                replay()
            end.record()
            end.synchronize()
            rounds.append(begin.elapsed_time(end) / 1e3 / scale.repeats)
    return statistics.median(rounds)


def _timed(work: Any) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _ignore(_step: Step, _group: int) -> None:
    """Nobody hears of groups here."""
