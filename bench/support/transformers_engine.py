"""transformers' `generate`, one padded batch at a time, for `engine_worker`; with adapters it is PEFT's."""

from __future__ import annotations

import torch
import transformers
from engine_worker import Generate, serve
from peft import PeftModel


def load(model: str, threads: int, adapters: list[str]) -> tuple[Generate, dict[str, str]]:
    """Load the model in bfloat16; SDPA, which is its default."""
    torch.set_num_threads(threads)
    own = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    for number, folder in enumerate(adapters):
        if number == 0:
            own = PeftModel.from_pretrained(own, folder, adapter_name="0")
        else:
            own.load_adapter(folder, str(number))
    own.eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], max_tokens: int, num_adapters: int) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        names = [str(place % num_adapters) if num_adapters else "__base__" for place in range(len(prompts))]
        named = {"adapter_names": names} if adapters else {}
        out = own.generate(
            input_ids=ids, attention_mask=mask, min_new_tokens=max_tokens, max_new_tokens=max_tokens, do_sample=False,
            pad_token_id=0, **named,
        )  # fmt: skip
        return int(out.shape[0] * (out.shape[1] - longest))

    return generate, {"transformers": transformers.__version__}


if __name__ == "__main__":
    serve(load)
