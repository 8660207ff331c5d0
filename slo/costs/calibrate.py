"""Drives a running cluster with a few requests and sees what they cost: prompts, batches of answers, both at once.

Asks through the client and reads the timelines and reports that come with results; whoever else uses the cluster
meanwhile spoils the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagewire.client import AsyncClient, Tls
from pagewire.core.messages import Role
from pagewire.slo.costs import batches, sharing
from pagewire.slo.costs.calibration import LEAST_BYTE_S, BesideSeen, PromptSeen, Seen, calibrated
from pagewire.slo.costs.cost_model import MEASURED, CostModel
from pagewire.slo.costs.question import Asker, Question
from pagewire.slo.figures.origin import machine, versions

PROMPTS = (32, 96, 192, 256, 384, 512, 768, 1024)
BATCHES = ((1, 64), (1, 512), (2, 128), (4, 64), (4, 256), (8, 64), (8, 256), (16, 64))  # sequences, prompt


async def calibrate(
    url: str, *, api_key: str = "", tls: Tls | None = None, rounds: int = 3, seed: int = 0,
    say: Callable[[str], None] = print,
) -> CostModel:  # fmt: skip
    """Return the cost model of the cluster whose router's gRPC is at `url`; raises PagewireError, ValueError.

    Where it asks for keys, `api_key` is an operator's: pods and their roles are told to nobody else.
    """
    async with AsyncClient(url, api_key=api_key, tls=tls) as client:
        info = await client.model_info()
        asker = Asker(client, vocab_size=info.vocab_size, max_model_len=info.max_model_len, seed=seed)
        longest = asker.longest(batches.ANSWER)
        roles = [pod.role for pod in await client.loads() if pod.usable]
        seen, bytes_by_block = Seen(), 0
        await asker.ask(64, 4)  # warms links and streams up
        for number in range(rounds):
            say(f"prompts, round {number + 1} of {rounds}")
            for length in (each for each in PROMPTS if each <= longest):
                question = await asker.ask(length, 4)
                seen.prompts.append(_prompt_seen(question))
                report = question.result.transfer
                if report is not None and report.blocks_shipped:
                    bytes_by_block = report.bytes_shipped // report.blocks_shipped
            say(f"batches, round {number + 1} of {rounds}")
            for batch, length in BATCHES:
                steps = await batches.steps_of(asker, batch, min(length, longest))
                if steps is not None:
                    seen.decodes.append(steps.mean)
                    seen.spreads.append(steps.spread)
            say(f"side by side, round {number + 1} of {rounds}")
            seen.beside += await _beside(asker, roles)
    about = {
        "source": MEASURED, "model": info.model, "block_size": info.block_size, "max_model_len": info.max_model_len,
        "longest_prompt": max(each.tokens for each in seen.prompts), "rounds": rounds, "seed": seed,
        "machine": machine(), "versions": versions("grpcio"),
    }  # fmt: skip
    # Where nothing travels its bytes do not matter.
    return calibrated(seen, token_bytes=max(4, bytes_by_block // info.block_size), about=about)


def _prompt_seen(question: Question) -> PromptSeen:
    report = question.result.transfer
    shipped = report if question.is_remote else None
    return PromptSeen(
        tokens=question.tokens,
        steps=max(1, report.chunks) if report is not None else 1,
        compute_s=question.compute_s,
        intake_s=question.intake_s,
        ttft_s=question.ttft_s,
        num_bytes=shipped.bytes_shipped if shipped is not None else 0,
        transfer_s=shipped.transfer_s if shipped is not None else 0.0,
    )


async def _beside(asker: Asker, roles: Sequence[str]) -> list[BesideSeen]:
    """Return what pods took from one another, in each way in which two of them can compute at once."""
    seen: list[BesideSeen] = []
    num_builders = len(roles) - roles.count(Role.DECODE.value)
    num_writers = len(roles) - roles.count(Role.PREFILL.value)
    if len(roles) > 1:
        for batch in sharing.BATCHES:
            seen += await sharing.prompts_beside_answers(asker, batch)
    if num_writers > 1:
        seen += await sharing.answers_beside_answers(asker)
    if num_builders > 1:
        seen += await sharing.prompts_beside_prompts(asker)
    return seen


def summary_lines(costs: CostModel) -> list[str]:
    """Return the laws and their residuals, for people."""
    prefill, decode, sharing = costs.prefill.lines[0], costs.decode.lines[0], costs.sharing
    lines = [
        f"prefill step   {1e3 * prefill.step_s:.3f} ms + {1e6 * prefill.prefill_token_s:.2f} us a token "
        f"+ {1e9 * prefill.prefill_pair_s:.3f} ns a pair",
        f"decode step    {1e3 * decode.step_s:.3f} ms + {1e3 * decode.decode_s:.3f} ms a sequence "
        f"+ {1e9 * decode.decode_pair_s:.3f} ns a pair",
        f"link           {_link_line(costs)}",
        f"frames, intake {1e3 * costs.frame_s:.3f} ms; {1e3 * costs.intake_s:.3f} ms "
        f"+ {1e6 * costs.intake_token_s:.2f} us a token; noise {costs.noise:.3f}",
        f"beside another pod a prefill step takes {sharing.prefill_beside_prefill:.2f} (it prefills) "
        f"or {sharing.prefill_beside_decode:.2f} (it decodes) times as long, "
        f"a decode step {sharing.decode_beside_prefill:.2f} or {sharing.decode_beside_decode:.2f}",
    ]
    told: dict[str, Any] = dict(costs.residuals)
    lines += [
        f"left over      {name}: rms {1e3 * each['rms_s']:.3f} ms, at most {1e3 * each['largest_s']:.3f} ms, "
        f"{each['mean_relative']:.1%} in the mean"
        for name, each in told.items()
    ]
    return lines


def _link_line(costs: CostModel) -> str:
    if "link" not in costs.residuals:
        return "not seen: nothing travelled"
    is_seen = costs.link.bytes_per_s < 1 / LEAST_BYTE_S
    per_byte = f"bytes / {costs.link.bytes_per_s / 1e9:.2f} GB/s" if is_seen else "nothing for bytes that could be seen"
    return f"{1e3 * costs.link.latency_s:.3f} ms + {per_byte}"
