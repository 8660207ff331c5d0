"""vLLM's `LLM` on a CPU, compiled, prefix caching off, for `engine_worker`; runs under vLLM's own Python."""

from __future__ import annotations

import os
from importlib import metadata

from engine_worker import Generate, serve

MAX_RANK = 16


def load(model: str, threads: int, adapters: list[str]) -> tuple[Generate, dict[str, str]]:
    """Load the model, its threads bound to the first cores as it is its default."""
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - its settings are read when it is imported
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    lora = {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": MAX_RANK} if adapters else {}
    llm = LLM(model, dtype="bfloat16", max_model_len=4096, enable_prefix_caching=False, max_num_seqs=256, **lora)
    loras = [LoRARequest(folder, number, folder) for number, folder in enumerate(adapters, 1)]

    def generate(prompts: list[list[int]], max_tokens: int, num_adapters: int) -> int:
        sampling = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        named = [loras[place % num_adapters] for place in range(len(prompts))] if num_adapters else None
        answers = llm.generate(asked, sampling, use_tqdm=False, lora_request=named)
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return generate, {"vllm-cpu": metadata.version("vllm-cpu")}


if __name__ == "__main__":
    serve(load)
