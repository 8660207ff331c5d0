"""This project's engine, in place, for `engine_worker`."""

from __future__ import annotations

from engine_worker import Generate, serve

from pagewire.core.sampling import SamplingParams
from pagewire.engine import LLM


def load(model: str, threads: int, adapters: list[str]) -> tuple[Generate, dict[str, str]]:
    """Load the model with prefix caching as it is: no prompt is asked twice."""
    llm = LLM(
        model, threads=threads, kv_memory_bytes=2 << 30, adapters={str(i): each for i, each in enumerate(adapters)}
    )

    def generate(prompts: list[list[int]], max_tokens: int, num_adapters: int) -> int:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        names = [str(place % num_adapters) if num_adapters else "" for place in range(len(prompts))]
        answers = llm.generate(prompts, sampling, progress=False, adapter=names)
        return sum(len(completion.token_ids) for completion in answers)

    return generate, {}


if __name__ == "__main__":
    serve(load)
