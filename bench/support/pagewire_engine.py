"""This project's engine, in place, for `engine_worker`."""

from __future__ import annotations

from engine_worker import Batch, Generate, Settings, serve

from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM


def load(model: str, threads: int, settings: Settings) -> tuple[Generate, dict[str, str]]:
    """Load the model with prefix caching as it is: whoever asks a prompt twice has to know it."""
    llm = LLM(
        model, threads=threads, kv_memory_bytes=2 << 30, speculative_tokens=settings.speculative_tokens,
        adapters={str(number): each for number, each in enumerate(settings.adapters)},
    )  # fmt: skip

    def generate(batch: Batch) -> int:
        sampling = SamplingParams(max_tokens=batch.max_tokens, temperature=0.0, ignore_eos=not batch.ends)
        count = batch.num_adapters
        names = [str(place % count) if count else "" for place in range(len(batch.prompts))]
        answers = llm.generate(batch.prompts, sampling, progress=False, adapter=names)
        return sum(len(completion.token_ids) for completion in answers)

    return generate, {}


if __name__ == "__main__":
    serve(load)
