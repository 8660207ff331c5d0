"""transformers' `generate`, one padded batch at a time, for `engine_worker`; with adapters it is PEFT's.

It drafts for one prompt alone, and is given several one by one where it is to.
"""

from __future__ import annotations

import torch
import transformers
from engine_worker import Batch, Generate, Settings, serve
from peft import PeftModel

PAD = 0


def load(model: str, threads: int, settings: Settings) -> tuple[Generate, dict[str, str]]:
    """Load the model in bfloat16; SDPA, which is its default."""
    torch.set_num_threads(threads)
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    for number, folder in enumerate(settings.adapters):
        if number == 0:
            own = PeftModel.from_pretrained(own, folder, adapter_name="0")
        else:
            own.load_adapter(folder, str(number))
    own.eval()

    def generate(batch: Batch) -> int:
        if not settings.speculative_tokens:
            return padded(batch, batch.prompts, {})
        drafted = {"prompt_lookup_num_tokens": settings.speculative_tokens, "max_matching_ngram_size": 3}
        return sum(padded(batch, [prompt], drafted) for prompt in batch.prompts)

    @torch.inference_mode()
    def padded(batch: Batch, prompts: list[list[int]], more: dict[str, int]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        count, least = batch.num_adapters, 1 if batch.ends else batch.max_tokens
        names = [str(place % count) if count else "__base__" for place in range(len(prompts))]
        named = {"adapter_names": names} if settings.adapters else {}
        out = own.generate(
            input_ids=ids, attention_mask=mask, min_new_tokens=least, max_new_tokens=batch.max_tokens, do_sample=False,
            pad_token_id=PAD, **named, **more,
        )  # fmt: skip
        return int((out[:, longest:] != PAD).sum()) if batch.ends else int(out[:, longest:].numel())

    return generate, {"transformers": transformers.__version__}


if __name__ == "__main__":
    serve(load)
