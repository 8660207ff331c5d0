"""transformers on the same requests: `generate` in padded batches, or `generate_batch`'s continuous batching.

A process of its own: `FOLDER WAY DEVICE DTYPE`, the requests as JSON on stdin, seconds and tokens as JSON on stdout.
Tokens beyond what a request asked for are not counted, though a padded batch computes them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

BATCH = 64  # of `generate`; requests of one batch wait for its longest
TEMPERATURE = 0.6
Request = tuple[list[int], int]


def padded(model: Any, requests: list[Request]) -> int:
    """Generate in batches of the order given, left-padded; return the tokens that were asked for."""
    for first in range(0, len(requests), BATCH):
        some = requests[first : first + BATCH]
        longest = max(len(prompt) for prompt, _ in some)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in some], device=model.device)
        mask = torch.tensor(
            [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in some], device=model.device
        )
        most = max(max_tokens for _, max_tokens in some)
        out = model.generate(
            ids, attention_mask=mask, min_new_tokens=most, max_new_tokens=most, do_sample=True,
            temperature=TEMPERATURE, pad_token_id=0,
        )  # fmt: skip
        if out.shape[1] != longest + most:
            raise RuntimeError(f"{out.shape[1] - longest} tokens of {most}")
    return sum(max_tokens for _, max_tokens in requests)


def continuous(model: Any, requests: list[Request]) -> int:
    """Hand all requests to the continuous batching manager, each with its own length; return the tokens that came."""
    config = transformers.GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, eos_token_id=-1, pad_token_id=0,
        max_new_tokens=max(max_tokens for _, max_tokens in requests),
    )  # fmt: skip
    manager = model.init_continuous_batching(generation_config=config)
    manager.start()
    try:
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
    finally:
        manager.stop(block=True)
    return tokens


WAYS: dict[str, Callable[[Any, list[Request]], int]] = {"generate": padded, "generate_batch": continuous}


def main(folder: str, way: str, device: str, dtype: str) -> None:
    """Load, warm up on a short request, run, tell."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints is not the answer
    requests: list[Request] = [(prompt, max_tokens) for prompt, max_tokens in json.load(sys.stdin)]
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to(device).eval()
    with torch.inference_mode():
        WAYS[way](model, [(requests[0][0], 2)] * 2)
        started_s = time.perf_counter()
        tokens = WAYS[way](model, requests)
        elapsed_s = time.perf_counter() - started_s
    wanted = sum(max_tokens for _, max_tokens in requests)
    told = {"seconds": elapsed_s, "output-tokens": tokens, "wanted": wanted, "transformers": transformers.__version__}
    print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
