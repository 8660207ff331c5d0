"""Offline use: `LLM(folder).generate(prompts, SamplingParams(...))`, the whole engine in the calling process.

Knows the forms in which prompts come; what runs them is `in_place.py`. Tokens are those of a server with the same
model, dtype and seed. Invariant: what is wrong with a prompt is said before any of them runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from pagewire.core import local_models
from pagewire.core.errors import InvalidRequest, PagewireError
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.core.sampling import SamplingParams, TokenSequence
from pagewire.core.unicode_text import require_unicode
from pagewire.core.units import parse_bytes
from pagewire.engine.adapter_folder import text_of
from pagewire.engine.config import EngineConfig
from pagewire.engine.in_place import Completion, InPlaceEngine, Job
from pagewire.text.tokenizer import Tokenizer, word_texts

OF_PODS = frozenset({"role", "brownout", "stall_s", "log_level", "log_format"})
SETTINGS = frozenset(field.name for field in dataclasses.fields(EngineConfig)) - {"model", "threads", "adapters"}
Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model in this process; a context manager. For one thread.

    `model` is a Hugging Face folder, or the name of a local model; `settings` are those of `EngineConfig`, such as
    `dtype`, `kv_memory_bytes` (a number, or a text like "1.5GiB") and `max_model_len`. `threads` 0 takes torch's
    number, and no more than the cores that are usable. `adapters` are LoRA adapters, name to folder as PEFT writes it.
    Raises ValueError or OSError where the model cannot be loaded,
    ValueError on a setting that only pods have, TypeError on one that there is not.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        threads: int = 0,
        adapters: Mapping[str, str | Path] | None = None,
        **settings: Any,
    ) -> None:
        folder = local_models.find(str(model))
        if folder is None:
            local = ", ".join(path.name for path in local_models.installed()) or "there are none"
            raise FileNotFoundError(f"{model} is neither a folder with a config.json nor a local model ({local})")
        _check_names(settings)
        sizes = {name: _bytes(name, value) for name, value in settings.items() if name.endswith("_bytes")}
        if not isinstance(adapters, Mapping | None):
            raise ValueError(f"adapters is a mapping of names to folders, not {adapters!r:.100}")
        named = tuple(text_of(name, path) for name, path in (adapters or {}).items())
        config = EngineConfig(
            model=str(folder), role=Role.COLOCATED, threads=threads, adapters=named, **{**settings, **sizes}
        )
        self._tokenizer = Tokenizer(folder)
        self._engine: InPlaceEngine | None = InPlaceEngine.load(config, self._tokenizer)

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        cache_salt: str = "",
        priority: Sequence[int] = (),
        adapter: str | Sequence[str] = "",
    ) -> list[Completion]:
        """Return the completion of each prompt, a text or token ids, in their order.

        `sampling` is for all of them or one for each; a prompt asked twice with one seed gets one answer twice.
        `progress` shows a bar where stderr is a terminal. With a `priority` for each prompt, the lower it is the sooner
        that one runs, where the engine was loaded with `scheduling="priority"`. `adapter` is the name of one of the
        engine's adapters for all prompts, or a name for each, "" for none. Raises InvalidRequest, naming the prompt,
        before anything runs; the first error of a sequence that fails ends the others.
        """
        if not isinstance(prompts, Iterable) or isinstance(prompts, Mapping):
            raise InvalidRequest(f"prompts is a text or a list of prompts, not {prompts!r:.100}", field="prompts")
        asked = [prompts] if isinstance(prompts, str) else list(prompts)
        tokens = [self._tokens(number, prompt) for number, prompt in enumerate(asked)]
        return self._run(tokens, sampling, progress, cache_salt, priority, adapter)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
        cache_salt: str = "",
        priority: Sequence[int] = (),
        adapter: str | Sequence[str] = "",
    ) -> list[Completion]:
        """Return the assistant's next turn in each conversation, written by the model's chat template.

        A single list of messages is one conversation. Otherwise as `generate`.
        """
        if not isinstance(conversations, Iterable):
            said = f"conversations is a list of messages, or of such lists, not {conversations!r:.100}"
            raise InvalidRequest(said, field="conversations")
        asked: list[Any] = list(conversations)
        if asked and isinstance(asked[0], Mapping):
            asked = [asked]
        for number, messages in enumerate(asked):
            is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
            if not is_list or not all(isinstance(message, Mapping) for message in messages):
                raise InvalidRequest(f"conversations[{number}] is no list of messages", field="conversations")
        texts = [self._tokenizer.render_chat(messages) for messages in asked]
        for number, text in enumerate(texts):
            require_unicode(text, f"conversations[{number}]", "conversations")
        # A template writes the special tokens itself.
        prompts = [tuple(self._tokenizer.encode_now(text, add_special_tokens=False)) for text in texts]
        return self._run(prompts, sampling, progress, cache_salt, priority, adapter)

    def bad_words(self, texts: Sequence[str]) -> tuple[TokenSequence, ...]:
        """Return texts as `bad_words` of `SamplingParams`: each at the beginning of a word and within one.

        Raises InvalidRequest for a text that is none.
        """
        words = [texts] if isinstance(texts, str) else list(texts)
        for word in words:
            if not isinstance(word, str) or not word:
                raise InvalidRequest(f"a bad word is a text, not {word!r:.100}", field="bad_words")
            require_unicode(word, "a bad word", "bad_words")
        every = [text for word in words for text in word_texts(word)]
        found = dict.fromkeys(tuple(self._tokenizer.encode_now(text, add_special_tokens=False)) for text in every)
        return tuple(TokenSequence(tokens=ids) for ids in found)

    def load(self) -> Load:
        """Return what the engine holds now and has counted since it was loaded: prompt and output tokens, hits."""
        return self._loaded().engine.loop.load()

    def close(self) -> None:
        """Let go of the model and its KV pool, whose cache a `host_kv_dir` keeps; nothing may be asked any more."""
        engine, self._engine = self._engine, None
        with contextlib.closing(self._tokenizer):
            if engine is not None:
                engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _loaded(self) -> InPlaceEngine:
        if self._engine is None:
            raise ValueError("this LLM is closed")
        return self._engine

    def _tokens(self, number: int, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            require_unicode(prompt, f"prompts[{number}]", "prompts")
            return tuple(self._tokenizer.encode_now(prompt))
        tokens: Any = prompt
        is_list = isinstance(tokens, Sequence) and not isinstance(tokens, bytes | bytearray)
        if not is_list or any(type(token) is not int for token in tokens):
            raise InvalidRequest(f"prompts[{number}] is neither a text nor a list of token ids", field="prompts")
        return tuple(tokens)

    def _run(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool,
        cache_salt: str,
        priority: Sequence[int],
        adapter: str | Sequence[str],
    ) -> list[Completion]:
        engine = self._loaded()
        params = [sampling or SamplingParams()] * len(prompts) if not isinstance(sampling, Sequence) else [*sampling]
        if len(params) != len(prompts):
            raise InvalidRequest(f"{len(params)} sampling parameters for {len(prompts)} prompts", field="sampling")
        if not isinstance(cache_salt, str):
            raise InvalidRequest(f"cache_salt is a text, not {cache_salt!r:.100}", field="cache_salt")
        require_unicode(cache_salt, "cache_salt", "cache_salt")
        if not isinstance(priority, Sequence) or (priority and len(priority) != len(prompts)):
            said = f"priority is a list with a number for each of {len(prompts)} prompts, not {priority!r:.100}"
            raise InvalidRequest(said, field="priority")
        ranks = priority or [0] * len(prompts)
        jobs = [
            Job(prompt=prompt, sampling=one, cache_salt=cache_salt, priority=rank, adapter=name)
            for prompt, one, rank, name in zip(
                prompts, params, ranks, self._adapters(adapter, len(prompts)), strict=True
            )
        ]
        for number, job in enumerate(jobs):
            self._check(number, job)
        completions: dict[int, Completion] = {}
        with tqdm(total=len(jobs), unit="prompt", disable=None if progress else True) as bar:
            for number, outcome in engine.run(jobs):
                if isinstance(outcome, PagewireError):
                    raise outcome
                completions[number] = outcome
                bar.update()
        return [completions[number] for number in range(len(jobs))]

    def _adapters(self, adapter: str | Sequence[str], count: int) -> list[str]:
        """Return the adapter of each of `count` prompts; raises InvalidRequest."""
        if not isinstance(adapter, Sequence) or not all(isinstance(name, str) for name in adapter):
            raise InvalidRequest(f"adapter is a name or a list of names, not {adapter!r:.100}", field="adapter")
        names = [adapter] * count if isinstance(adapter, str) else list(adapter)
        if len(names) != count:
            raise InvalidRequest(f"{len(names)} adapters for {count} prompts", field="adapter")
        known = self._loaded().engine.ready.fingerprint.adapter_names
        for name in names:
            if name and name not in known:
                said = f"there is no adapter {name!r:.100}; those loaded are {', '.join(known) or 'none'}"
                raise InvalidRequest(said, field="adapter")
        return names

    def _check(self, number: int, job: Job) -> None:
        prompt, sampling = job.prompt, job.sampling
        ready = self._loaded().engine.ready
        longest = ready.fingerprint.max_model_len - 1
        if not 1 <= len(prompt) <= longest:
            raise InvalidRequest(f"prompts[{number}] has {len(prompt)} tokens; 1 to {longest} may be", field="prompts")
        if not 0 <= min(prompt) <= max(prompt) < ready.vocab_size:
            raise InvalidRequest(
                f"prompts[{number}] holds a token id that is not between 0 and {ready.vocab_size - 1}", field="prompts"
            )
        if not isinstance(sampling, SamplingParams):
            raise InvalidRequest(f"sampling is SamplingParams, not {sampling!r:.100}", field="sampling")
        self._loaded().check(sampling, job.priority)
        self._loaded().compile(sampling)
        try:
            self._loaded().check_room(job)
        except InvalidRequest as error:
            raise InvalidRequest(f"prompts[{number}]: {error.message}", field=error.field) from error


def _check_names(settings: Iterable[str]) -> None:
    """Raise ValueError on a setting that only pods have, TypeError on one that there is not."""
    for name in settings:
        if name in OF_PODS:
            raise ValueError(f"{name} is a setting of pods, and means nothing without one")
        if name not in SETTINGS:
            known = ", ".join(sorted(SETTINGS - OF_PODS | {"threads", "adapters"}))
            raise TypeError(f"LLM has no setting {name!r}; those it has are {known}")


def _bytes(name: str, value: object) -> int:
    """Return the bytes of a setting; raises ValueError naming it."""
    if type(value) is int:
        return value
    if not isinstance(value, str):
        raise ValueError(f'{name} is a number of bytes or a text such as "1GiB", not {value!r:.100}')
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
