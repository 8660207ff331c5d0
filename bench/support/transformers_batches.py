"""transformers on the same requests: `generate` in padded batches, or `generate_batch`'s continuous batching.

A process of its own: `FOLDER WAY DEVICE DTYPE`, the requests as JSON on stdin, seconds and tokens as JSON on stdout.
Tokens beyond what a request asked for are not counted, though a padded batch computes them. What is done once (its
cache is allotted, its graphs are captured) is done before the clock runs, as it is for our engine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching.utils import WorkloadHints

BATCH = 64  # of `generate`; requests of one batch wait for its longest
TEMPERATURE = 0.6
FLASH = ("flash_attn", "flash_attn_interface")  # packages that continuous batching is better with
Request = tuple[list[int], int]  # a prompt, and how many tokens to generate
Serve = Callable[[list[Request]], int]  # returns the tokens that were asked for and came


@contextmanager
def padded(model: Any, _requests: list[Request]) -> Iterator[Serve]:
    """Generate in batches of the order given, left-padded."""

    def serve(requests: list[Request]) -> int:
        for first in range(0, len(requests), BATCH):
            _generate(model, requests[first : first + BATCH])
        return sum(max_tokens for _, max_tokens in requests)

    yield serve


def _generate(model: Any, requests: list[Request]) -> None:
    longest = max(len(prompt) for prompt, _ in requests)
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in requests], device=model.device)
    mask = torch.tensor(
        [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in requests], device=model.device
    )
    most = max(max_tokens for _, max_tokens in requests)
    out = model.generate(
        ids, attention_mask=mask, min_new_tokens=most, max_new_tokens=most, do_sample=True, temperature=TEMPERATURE,
        pad_token_id=0,
    )  # fmt: skip
    if out.shape[1] != longest + most:
        raise RuntimeError(f"{out.shape[1] - longest} tokens of {most}")


@contextmanager
def continuous(model: Any, requests: list[Request]) -> Iterator[Serve]:
    """Hand all requests to one continuous batching manager, each with its own length."""
    if not any(map(importlib.util.find_spec, FLASH)):
        model.set_attn_implementation("paged|sdpa")  # by itself it would have a kernel fetched
    longest_prompt, longest_output = max(len(prompt) for prompt, _ in requests), max(most for _, most in requests)
    config = transformers.GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, eos_token_id=-1, pad_token_id=0, max_new_tokens=longest_output
    )
    hints = WorkloadHints(  # those that `generate_batch` gives, which has all requests end at one length
        max_prompt_length=longest_prompt, max_generated_length=longest_output, num_requests=len(requests)
    )
    with model.continuous_batching_context_manager(generation_config=config, workload_hints=hints) as manager:
        yield lambda some: _serve(manager, some)


def _serve(manager: Any, requests: list[Request]) -> int:
    for prompt, max_tokens in requests:
        manager.add_request(prompt, max_new_tokens=max_tokens)
    tokens = ended = 0
    while ended < len(requests):
        result = manager.get_result(timeout=1.0)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("generate_batch has ended before its requests")
            continue
        if result.error:
            raise RuntimeError(f"generate_batch: {result.error}")
        tokens += len(result.generated_tokens)
        ended += 1
    return tokens


WAYS: dict[str, Callable[[Any, list[Request]], AbstractContextManager[Serve]]] = {
    "generate": padded,
    "generate_batch": continuous,
}


def main(folder: str, way: str, device: str, dtype: str) -> None:
    """Load, warm up on a short request, run, tell."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints is not the answer
    requests: list[Request] = [(prompt, max_tokens) for prompt, max_tokens in json.load(sys.stdin)]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to(device).eval()
    with WAYS[way](model, requests) as serve:
        serve([(requests[0][0], 2)] * 2)
        started_s = time.perf_counter()
        tokens = serve(requests)
        elapsed_s = time.perf_counter() - started_s
        attention = model.config._attn_implementation
    wanted = sum(max_tokens for _, max_tokens in requests)
    told = {"seconds": elapsed_s, "output-tokens": tokens, "wanted": wanted, "attention": attention}
    told["transformers"] = transformers.__version__
    print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
