"""Steps in real CUDA graphs against the same steps computed eagerly, in bfloat16.

Random weights and keys, NaN in every slot without a token. Products round otherwise for other batch sizes, so rows are
compared whole, within bfloat16's noise, in which a single element may be anywhere; tokens are those of the logits that
they were drawn from, exactly.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch

from pagewire.core.kv_layout import BlockOrder
from pagewire.core.sampling import SamplingParams
from pagewire.engine.block import table_of
from pagewire.engine.capture import CudaCapture
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.graph_limits import GraphLimits
from pagewire.engine.graph_pool import GraphPool
from pagewire.engine.model import checkpoint
from pagewire.engine.model.decoder import Decoder
from pagewire.engine.model.decoder_config import DecoderConfig
from pagewire.engine.packed_batch import pack
from pagewire.engine.step import AHEAD, Draw, Grant, Step
from pagewire.kernels.rope import Rope
from pagewire.kernels.scaled_weight import ScaledWeight
from pagewire.kernels.torch_backend import TorchBackend
from pagewire.kernels.triton_backend import TritonBackend

HOPPER = (9, 0)
BLOCK, LONGEST = 16, 2048
LONGEST_STEP = 512
CUDA = torch.device("cuda")
# Of a row, apart, over its norm. Two shapes of products put these models' logits 0.7 to 1.0 % apart; a row of something
# else is 140 % away.
APART = 0.03


def has_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_hopper(), reason="no CUDA device of capability 9.0"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]


def config_of(
    *, windows: tuple[int, int] = (0, 0), qk_norm: bool = True, scaling: str = "default", num_q_heads: int = 8
) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=5000, hidden_size=512, intermediate_size=1024, num_layers=2, num_q_heads=num_q_heads, num_kv_heads=2,
        head_dim=512 // num_q_heads, norm_eps=1e-6, max_positions=LONGEST,
        rope=Rope(theta=10000.0, scaling=scaling, factor=2.0, original_max_positions=256),
        tied_embeddings=False, windows=windows, qk_norm=qk_norm, qkv_bias=not qk_norm,
    )  # fmt: skip


class Rig:
    """A model, its pool, its graphs."""

    def __init__(self, config: DecoderConfig, *, quantised: bool = False, num_sequences: int = 20) -> None:
        torch.manual_seed(0)
        self.num_sequences = num_sequences
        weights, places, _ = checkpoint.allocate(config, torch.bfloat16, CUDA, quantised=quantised)
        for name, place in places.items():
            middle = 1.0 if name.endswith("norm.weight") else 0.0
            weight = torch.empty(place.shape, device=CUDA).normal_(middle, 0.05)
            if isinstance(place, ScaledWeight):
                place.fill(weight, weight)
            else:
                place.copy_(weight)
        self.backend = TritonBackend.of(CUDA)
        self.model = Decoder(config, weights, self.backend)
        layout = config.kv_layout(BLOCK, "bfloat16", BlockOrder.LAYER_OUTER)
        self.pool = torch.full(layout.shape(30 * num_sequences), torch.nan, dtype=torch.bfloat16, device=CUDA)
        limits = GraphLimits(
            max_num_seqs=num_sequences, max_model_len=LONGEST, block_size=BLOCK, vocab_size=config.vocab_size,
            longest_step=LONGEST_STEP,
        )  # fmt: skip
        self.graphs = GraphPool(self.model, self.pool, self.backend, CudaCapture(CUDA), limits)
        self.graphs.warm_up()

    def grant(
        self, name: str, at: int, blocks: tuple[int, ...], sampling: SamplingParams, num_tokens: int = 1
    ) -> Grant:
        """Return one whose cache before it is filled with random numbers."""
        for place, block in enumerate(blocks):
            filled = min(BLOCK, at - place * BLOCK)
            if filled > 0:
                self.pool[block, :, :, :, :filled].normal_()
        draw = Draw(sampling=sampling, index=0, position=at)
        tokens = tuple(token % 5000 for token in range(at, at + num_tokens))
        return Grant(request_id=name, tokens=tokens, start=at, block_ids=table_of(blocks), draw=draw)


@pytest.fixture(
    scope="module",
    params=[
        (config_of(), {}),
        (config_of(windows=(0, 100), qk_norm=False), {}),
        (config_of(qk_norm=False, scaling="dynamic"), {}),
        (config_of(), {"quantised": True}),
        # Beyond 16 sequences the graph of a mixture is for all 40, whose decodes have tiles of their own.
        (config_of(num_q_heads=4), {"num_sequences": 40}),
    ],
    ids=["qk_norm", "window", "dynamic", "codes", "many"],
)
def rig(request: pytest.FixtureRequest) -> Rig:
    config, others = request.param
    return Rig(config, **others)


def random_step(rig: Rig, chance: random.Random, names: list[str], chunks: tuple[int, ...] = ()) -> Step:
    """Return decodes, the first of which are chunks of so many tokens instead; of these not all draw."""
    rig.pool.fill_(torch.nan)
    ids = list(range(rig.pool.shape[0]))
    chance.shuffle(ids)
    grants = []
    for name, num_tokens in itertools.zip_longest(names, chunks, fillvalue=1):
        at = chance.choice([0, 1, 15, 16, 17, 100, chance.randrange(LONGEST - num_tokens)])
        num_blocks = (at + num_tokens - 1) // BLOCK + 1
        if len(ids) < num_blocks:
            at, num_blocks = 0, (num_tokens - 1) // BLOCK + 1
        blocks = tuple(ids.pop() for _ in range(num_blocks))
        sampling = SamplingParams(
            temperature=chance.choice([0.0, 0.7, 1.2]), top_k=chance.choice([0, 5]), top_p=chance.choice([1.0, 0.8]),
            seed=chance.randrange(1 << 40),
        )  # fmt: skip
        grant = rig.grant(str(name), at, blocks, sampling, num_tokens)
        grants.append(replace(grant, draw=None) if num_tokens > 1 and chance.random() < 0.3 else grant)
    chance.shuffle(grants)
    return Step(grants=tuple(grants))


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return how far the worst row is from what it should be, over the norm of that; rows of zeros are no rows."""
    away = (found - expected).float().norm(dim=-1)
    return float((away / expected.float().norm(dim=-1).clamp(min=1e-6)).max())


# Sequences of a step, and how many tokens those of them compute that are not decodes.
STEPS = (
    (1, ()), (2, ()), (3, (40,)), (8, ()), (9, (16, 3, 8, 9)), (1, (300,)), (16, ()), (20, (200, 1, 65)), (20, ()),
    (5, (500,)), (4, (7, 7, 7, 7)), (1, (5,)), (5, ()), (1, ()),
)  # fmt: skip


@torch.inference_mode()
def test_replays_are_eager_steps(rig: Rig) -> None:
    """Sequences join, leave and change places; buckets of all kinds are met; replays wait for nothing."""
    chance, most = random.Random(3), rig.num_sequences
    for size, chunks in (*STEPS, (most, (60, 8, 3)), (most, ())):
        step = random_step(rig, chance, [f"s{number}" for number in chance.sample(range(2 * most), size)], chunks)
        bucket = rig.graphs.bucket_of(step)
        assert bucket is not None
        assert bucket.are_decodes is (not chunks)
        before = rig.pool.clone()
        torch.cuda.set_sync_debug_mode("error")
        try:
            replayed = rig.graphs.run(step, bucket)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found, after = replayed.logits.clone(), rig.pool.clone()
        tokens = replayed.read_tokens()
        rig.pool.copy_(before)
        batch = pack(step, BLOCK, CUDA)
        computed = rig.model.forward(batch, rig.pool).float()
        order = [[*batch.draws].index(name) for name in replayed.batch.draws]
        assert len(order) == len(batch.draws)
        assert apart(found, computed[order]) < APART
        assert torch.equal(after.isnan(), rig.pool.isnan())
        assert apart(after.nan_to_num(), rig.pool.nan_to_num()) < APART
        rows = rows_of([*replayed.batch.draws.values()])
        assert tokens == TorchBackend().sample(found.cpu(), rows)
    assert rig.graphs.num_recaptures == 0


@torch.inference_mode()
@pytest.mark.parametrize("chunks", [(), (90, 5)])
def test_a_replay_is_the_same_bits_each_time(rig: Rig, chunks: tuple[int, ...]) -> None:
    step = random_step(rig, random.Random(5), [f"s{number}" for number in range(11)], chunks)
    bucket = rig.graphs.bucket_of(step)
    assert bucket is not None
    first = rig.graphs.run(step, bucket).logits.clone()
    for _ in range(10):
        assert torch.equal(rig.graphs.run(step, bucket).logits, first)


@torch.inference_mode()
def test_a_step_goes_on_with_what_a_mixed_one_drew(rig: Rig) -> None:
    """The same is drawn as by a step that is given these tokens; one that draws nothing is waited for all the same."""
    step = random_step(rig, random.Random(11), [f"s{number}" for number in range(6)], (70, 5))
    every = Draw(sampling=SamplingParams(temperature=0.0), index=0, position=0)
    step = Step(grants=tuple(replace(grant, draw=grant.draw or every) for grant in step.grants))
    mixed = rig.graphs.bucket_of(step)
    assert mixed is not None

    def after(tokens: dict[str, int]) -> Step:
        """Return the step behind it, a token further in the last block that each has."""
        ends = {
            grant.request_id: min(grant.start + len(grant.tokens), len(grant.block_ids) * BLOCK - 1)
            for grant in step.grants
        }
        return Step(
            grants=tuple(
                replace(grant, tokens=(tokens.get(grant.request_id, AHEAD),), start=ends[grant.request_id])
                for grant in step.grants
            )
        )

    decodes = rig.graphs.bucket_of(after({}))
    assert decodes is not None
    torch.cuda.set_sync_debug_mode("error")
    try:
        first = rig.graphs.run(step, mixed)
        ahead = rig.graphs.run(after({}), decodes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    tokens = dict(zip(first.batch.draws, first.read_tokens(), strict=True))
    found = dict(zip(ahead.batch.draws, ahead.read_tokens(), strict=True))
    known = rig.graphs.run(after(tokens), decodes)
    assert dict(zip(known.batch.draws, known.read_tokens(), strict=True)) == found
    silent = Step(grants=tuple(replace(grant, draw=None) for grant in step.grants))
    replayed = rig.graphs.run(silent, mixed)
    assert (replayed.read_tokens(), replayed.logits.shape[0]) == ([], 0)


@torch.inference_mode()
def test_a_batch_comes_over_without_waiting(rig: Rig) -> None:
    step = random_step(rig, random.Random(7), ["a", "b", "c"])
    torch.cuda.set_sync_debug_mode("error")
    try:
        rig.model.forward(pack(step, BLOCK, CUDA), rig.pool)
    finally:
        torch.cuda.set_sync_debug_mode("default")
