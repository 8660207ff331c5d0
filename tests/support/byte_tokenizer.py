"""A small byte-level BPE tokenizer, written as an ordinary Hugging Face folder.

Real enough for what tests need of one: every byte has a token, so every text encodes and every id decodes; some common
words have tokens of their own, so that stop strings fall across and inside tokens; three special tokens and a ChatML
template. It says nothing about how well a real vocabulary compresses.
"""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS_ID = 2
CORPUS = (
    "the capital of France is Paris and the capital of Italy is Rome",
    "a block of tokens is a block of keys and values",
    "user assistant system hello world hello there stop the end",
)
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build() -> tokenizers.Tokenizer:
    """Return the tokenizer: 3 special tokens, 256 bytes, and merges of the corpus; the same ids every time."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def save(folder: Path, *, chat_template: str | None = CHATML, with_bos: bool = False, **config: object) -> Path:
    """Write the tokenizer to `folder`; `config` goes into tokenizer_config.json. Returns `folder`.

    `with_bos` makes its post-processor put the bos token before every text, as Llama's does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build()
    if with_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        **config,
    }
    if chat_template is not None:
        values["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
