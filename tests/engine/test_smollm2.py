"""The real SmolLM2 in fp32: equal to transformers' `generate` on text of several lengths, batched and chunked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine_runs import assert_at_rest, engine, greedy, run_all, spec
from reference import generate
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from pagewire.engine import LLM, SamplingParams

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


@pytest.mark.smollm2
def test_an_offline_chat_equals_generate_up_to_the_models_own_end(smollm2: Path) -> None:
    chats = [[{"role": "user", "content": f"What is the capital of {name}?"}] for name in ("France", "Japan")]
    with LLM(smollm2, dtype="float32", kv_memory_bytes=64 << 20, max_model_len=1024) as llm:
        answers = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=32))
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for chat, answer in zip(chats, answers, strict=True):
        asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        told = model.generate(**asked, max_new_tokens=32, do_sample=False)[0, asked["input_ids"].shape[1] :]
        assert list(answer.token_ids) == told.tolist()
        assert answer.text == tokenizer.decode(told, skip_special_tokens=True)
        assert answer.finish_reason == "stop"
    assert "Paris" in answers[0].text
