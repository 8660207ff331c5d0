"""The real SmolLM2 in fp32: equal to transformers' `generate` on text of several lengths, batched and chunked."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from reference import generate
from tokenizers import Tokenizer

NUM_TOKENS = 16
QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
LONG = " ".join(f"Chapter {i}: the river rose by {i * 3} feet, and {i} boats left the harbour." for i in range(20))


@pytest.mark.smollm2
def test_real_weights_equal_generate(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    texts = [
        QUESTION,
        "Once",
        "def fibonacci(n):\n    ",
        "Grüße aus Zürich — こんにちは 🌍!",
        LONG,
        LONG + " In short,",
    ]
    prompts = [tokenizer.encode(text).ids for text in texts]
    built = engine(smollm2, chunk_size=100, kv_memory_bytes=64 << 20, max_model_len=1024)
    heard = run_all(built.loop, [spec(str(i), prompt, greedy(NUM_TOKENS)) for i, prompt in enumerate(prompts)])
    assert [heard.tokens[str(i)] for i in range(len(prompts))] == generate(smollm2, prompts, NUM_TOKENS)
    assert "Paris" in tokenizer.decode(heard.tokens["0"])
    assert_at_rest(built.loop)
