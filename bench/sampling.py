"""What drawing a token for each of a batch's rows takes, natively, by the definition, and as plain torch would.

The three take turns; least of the repeats, since nothing but other work makes one slower. Logits are normal, of three
deviations, in the dtype of a step. "plain" sorts in the logits' fp32 and draws by `torch.multinomial`, as engines
without kernels of their own do.

Penalties are those of sequences that are so many tokens long, half of them prompt, and have one more than when they
were last asked about. Here "plain" makes tensors of all of a sequence's tokens each time, and counts in them densely.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "support"))

import torch
from origin import parser_of, write_figures

from pagewire.core.sampling import SamplingParams
from pagewire.engine.draw_rows import rows_of
from pagewire.engine.edit_builder import EditBuilder
from pagewire.engine.step import Draw
from pagewire.kernels import logit_edits, sampling
from pagewire.kernels.cpu_backend import CpuBackend

Edit = Callable[[torch.Tensor, logit_edits.LogitEdits], torch.Tensor]

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "typical_p": {"temperature": 0.8, "typical_p": 0.9},
}


PENALTIES: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.1},
    "frequency, presence": {"frequency_penalty": 0.5, "presence_penalty": 0.5},
}


def plain(logits: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
    """Return a token per row of logits `[n, V]`: `[n, 1]`."""
    if asked["temperature"] == 0.0:
        return logits.argmax(dim=-1, keepdim=True)
    likely = torch.softmax(logits.float() / asked["temperature"], dim=-1)
    if "top_k" in asked:
        likely = likely.where(likely >= likely.topk(asked["top_k"], dim=-1).values[:, -1:], 0.0)
    if "top_p" in asked:
        sorted_, order = likely.sort(dim=-1, descending=True)
        sorted_[sorted_.cumsum(dim=-1) - sorted_ > asked["top_p"] * sorted_.sum(dim=-1, keepdim=True)] = 0.0
        return order.gather(1, torch.multinomial(sorted_, 1))
    if "min_p" in asked:
        likely = likely.where(likely >= asked["min_p"] * likely.amax(dim=-1, keepdim=True), 0.0)
    if "typical_p" in asked:
        surprise = -likely.log()
        distance = (surprise - (likely * surprise).nan_to_num(0.0).sum(dim=-1, keepdim=True)).abs()
        _, order = distance.sort(dim=-1)
        sorted_ = likely.gather(1, order)
        sorted_[sorted_.cumsum(dim=-1) - sorted_ >= asked["typical_p"]] = 0.0
        return order.gather(1, torch.multinomial(sorted_, 1))
    return torch.multinomial(likely, 1)


class Going:
    """Sequences that get a token more each time that their logits `[n, V]` are penalised as they ask."""

    def __init__(self, logits: torch.Tensor, length: int, asked: dict[str, Any], edit: Edit | None) -> None:
        self._logits, self._edit = logits, edit
        num_rows, size = logits.shape
        tokens = torch.randint(0, size, (num_rows, length), generator=torch.Generator().manual_seed(1)).tolist()
        self._prompts = [tuple(each[: length // 2]) for each in tokens]
        self._outputs = [tuple(each[length // 2 :]) for each in tokens]
        self._asked = [SamplingParams(max_tokens=length, **asked) for _ in range(num_rows)]
        self._builder = EditBuilder(frozenset(), logits.device)

    def penalised(self) -> torch.Tensor:
        """Add a token to each sequence, and return what that makes of the logits."""
        self._outputs = [(*output, len(output)) for output in self._outputs]
        if self._edit is None:
            return self._plain()
        draws = {
            str(row): Draw(sampling=sampling, index=0, position=len(output), prompt=prompt, output=output)
            for row, (sampling, prompt, output) in enumerate(
                zip(self._asked, self._prompts, self._outputs, strict=True)
            )
        }
        edits = self._builder.build(draws, self._logits.shape[1])
        if edits is None:
            raise AssertionError("nothing was asked")
        return self._edit(self._logits, edits)

    def _plain(self) -> torch.Tensor:
        counts = [torch.zeros(self._logits.shape) for _ in range(2)]  # [n, V], of prompts and of outputs
        for count, lists in zip(counts, (self._prompts, self._outputs), strict=True):
            tokens = torch.tensor(lists)
            count.scatter_add_(1, tokens, torch.ones(()).expand_as(tokens))
        asked = self._asked[0]
        logits = self._logits.float()
        there = torch.where(counts[0] + counts[1] > 0, asked.repetition_penalty, 1.0)
        logits = torch.where(logits < 0, logits * there, logits / there)
        return logits - asked.frequency_penalty * counts[1] - asked.presence_penalty * (counts[1] > 0)


def least_ms(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the least milliseconds of each way, taking turns."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(repeats):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            least[name] = min(least[name], (time.perf_counter() - begun) * 1e3)
    return least


def main() -> None:
    """Print the table, and write the figures."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab-sizes", type=int, nargs="+", default=[49152, 151936])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2000, help="of a sequence that is penalised")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    backend, figures = CpuBackend.load(), dict[str, dict[str, float]]()
    if backend is None:
        raise SystemExit("no native library could be built here")
    for size in options.vocab_sizes:
        logits = (torch.randn(options.rows, size, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
        for name, asked in SETTINGS.items():
            draws = [
                Draw(sampling=SamplingParams(seed=row, **asked), index=0, position=3) for row in range(options.rows)
            ]
            rows = rows_of(draws)
            if backend.sample(logits, rows) != sampling.sample(logits, rows):
                raise AssertionError(f"{name}: other tokens than the definition's")
            ways = {
                "native": partial(backend.sample, logits, rows),
                "definition": partial(sampling.sample, logits, rows),
                "plain": partial(plain, logits, asked),
            }
            figures[f"{size} {name}"] = told = least_ms(ways, options.repeats)
            print(f"{size} {name}: " + ", ".join(f"{way} {ms:.1f} ms" for way, ms in told.items()), flush=True)
        for name, asked in PENALTIES.items():
            edits: dict[str, Edit | None] = {
                "native": backend.edit_logits, "definition": logit_edits.edit, "plain": None,
            }  # fmt: skip
            going = {way: Going(logits, options.tokens, asked, edit) for way, edit in edits.items()}
            natively, *others = (each.penalised() for each in going.values())
            if not all(torch.allclose(natively, other) for other in others):
                raise AssertionError(f"{name}: other logits than the definition's")
            figures[f"{size} {name}"] = told = least_ms(
                {way: each.penalised for way, each in going.items()}, options.repeats
            )
            print(f"{size} {name}: " + ", ".join(f"{way} {ms:.1f} ms" for way, ms in told.items()), flush=True)
    about = {"rows": options.rows, "tokens": options.tokens, "threads": options.threads}
    write_figures(options.json, {**about, "ms": figures}, "torch")


if __name__ == "__main__":
    main()
