"""What the requests of one model came to: their tokens, how they ended, how long each part took.

Pure: plain numbers that `request_metrics` shows under the names of others and our own. Knows no metric's name.
Invariants: a token is counted once it went out, whatever becomes of its request; a request ends in one of `endings` for
each of its answers, or in one for all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Protocol

from pagewire.core.distribution import Distribution
from pagewire.core.errors import Cancelled, Overloaded, PagewireError, status_of
from pagewire.core.sampling import SamplingParams
from pagewire.router.events import Finished
from pagewire.router.prediction import Targets
from pagewire.router.refusals import Reason, Refused
from pagewire.router.request_times import request_times

# vLLM's bounds where the meaning is the same, and never without one of them: sums with its servers go by bounds.
# fmt: off
MAX_PLACEMENTS, MAX_LABEL_CHARS = 32, 32  # there are some twenty ways, with words like "remote" and "cuda_ipc"
TTFT_S = (
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
GAP_S = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
PART_S = (  # vLLM's begin at 0.3: a wait of a millisecond would read as one of 0.15 s in the middle and 0.28 s at p95
    .001, .005, .01, .025, .05, .1, .2,
    .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)
TRANSFER_S = (.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
# fmt: on
TOKENS = (*(step * 10**power for power in range(6) for step in (1, 2, 5)), 10**6)
ANSWERS = (1, 2, 5, 10, 20)
# As OpenTelemetry advises them.
OTEL_DURATION_S = tuple(0.01 * 2**power for power in range(14))
OTEL_TTFT_S = TTFT_S[:16]
OTEL_TPOT_S = GAP_S[:13]
OTEL_TOKENS = tuple(4**power for power in range(14))

OF_TENANTS = (Reason.TENANT_CONCURRENCY, Reason.TENANT_TOKENS)  # limits that they know of
ENDINGS = ("stop", "length", "abort", "error")  # vLLM's words
MET_OR_MISSED = ("met", "missed")


class Tokens(Protocol):
    """A request that runs, as far as its tokens go."""

    has_begun: bool

    @property
    def num_prompt(self) -> int:
        """Of its prompt."""
        ...

    @property
    def num_output(self) -> int:
        """That went out."""
        ...


class RequestCounts:
    """One model's. `targets` are what its requests are promised, 0 for no promise."""

    def __init__(self, targets: Targets) -> None:
        self._targets = {"ttft": targets.ttft_s, "tpot": targets.tpot_s}
        self._running: set[Tokens] = set()
        self._prompt_tokens = self._output_tokens = 0  # of requests that are over
        self.endings = Counter(dict.fromkeys(ENDINGS, 0))
        self.placements: Counter[tuple[str, ...]] = Counter()  # by (placement, transport)
        self.slo: Counter[tuple[str, str]] = Counter()  # by (objective, met or missed)
        for objective in ("availability", *(name for name, limit_s in self._targets.items() if limit_s > 0)):
            self.slo.update(dict.fromkeys(((objective, word) for word in MET_OR_MISSED), 0))
        self.ttft_s = Distribution(TTFT_S)
        self.gap_s = Distribution(GAP_S)
        self.tpot_s = Distribution(GAP_S)
        self.e2e_s = Distribution(PART_S)
        self.queue_s = Distribution(PART_S)
        self.prefill_s = Distribution(PART_S)
        self.decode_s = Distribution(PART_S)
        self.inference_s = Distribution(PART_S)
        self.transfer_s = Distribution(TRANSFER_S)
        self.exposed_s = Distribution(TRANSFER_S)
        self.prompt = Distribution(TOKENS)
        self.output = Distribution(TOKENS)
        self.longest = Distribution(TOKENS)
        self.max_tokens = Distribution(TOKENS)
        self.answers = Distribution(ANSWERS)
        # As OpenTelemetry has them: by operation, and by error or kind of token.
        self.otel_duration_s: dict[tuple[str, str], Distribution] = defaultdict(lambda: Distribution(OTEL_DURATION_S))
        self.otel_ttft_s: dict[str, Distribution] = defaultdict(lambda: Distribution(OTEL_TTFT_S))
        self.otel_tpot_s: dict[str, Distribution] = defaultdict(lambda: Distribution(OTEL_TPOT_S))
        self.otel_tokens: dict[tuple[str, str], Distribution] = defaultdict(lambda: Distribution(OTEL_TOKENS))

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts whose first token went out."""
        return self._prompt_tokens + sum(each.num_prompt for each in self._running if each.has_begun)

    @property
    def output_tokens(self) -> int:
        """That went out, of requests that still run too."""
        return self._output_tokens + sum(each.num_output for each in self._running)

    def enter(self, request: Tokens) -> None:
        """A request begins to run."""
        self._running.add(request)

    def leave(self, request: Tokens) -> None:
        """It does no more, whatever ended it."""
        self._running.remove(request)
        self._prompt_tokens += request.num_prompt if request.has_begun else 0
        self._output_tokens += request.num_output

    def finished(self, event: Finished, sampling: SamplingParams, operation: str) -> None:
        """Count a request that came to its end; `operation` is chat or text_completion."""
        for ending in event.endings:
            self.endings[ending.finish_reason.value] += 1
        self._meets("availability", True)
        self._count_sizes(event, sampling, operation)
        self._time(event, operation)
        if (report := event.report) is not None:
            self.placements[self._placement(report.placement, report.transport)] += 1
            if report.placement != "local":
                self.transfer_s.observe(report.transfer_s)
                self.exposed_s.observe(report.exposed_s)

    def _placement(self, *told: str) -> tuple[str, ...]:
        """Return what a pod told of a placement, as labels: they are its own words, and have bounds."""
        labels = tuple(each[:MAX_LABEL_CHARS] for each in told)
        return labels if labels in self.placements or len(self.placements) < MAX_PLACEMENTS else ("other", "other")

    def failed(self, error: PagewireError, operation: str, seconds: float) -> None:
        """Count a request that failed, or that nobody wanted any more."""
        self.endings["abort" if isinstance(error, Cancelled) else "error"] += 1
        if _is_ours(error):
            self._meets("availability", False)
        self.otel_duration_s[operation, error.cause].observe(seconds)

    def _count_sizes(self, event: Finished, sampling: SamplingParams, operation: str) -> None:
        usage = event.usage
        self.prompt.observe(usage.prompt_tokens)
        self.output.observe(usage.completion_tokens)
        self.longest.observe(min(event.longest, usage.completion_tokens))  # what a score draws is not told
        self.max_tokens.observe(sampling.max_tokens)
        self.answers.observe(sampling.n)
        self.otel_tokens[operation, "input"].observe(usage.prompt_tokens)
        self.otel_tokens[operation, "output"].observe(usage.completion_tokens)

    def _time(self, event: Finished, operation: str) -> None:
        times = request_times(event.timelines)
        for distribution, seconds in (
            (self.ttft_s, times.ttft_s),
            (self.otel_ttft_s[operation], times.ttft_s),
            (self.e2e_s, times.e2e_s),
            (self.otel_duration_s[operation, ""], times.e2e_s),
            (self.queue_s, times.queue_s),
            (self.prefill_s, times.prefill_s),
            (self.decode_s, times.decode_s),
        ):
            if seconds is not None:
                distribution.observe(seconds)
        if times.prefill_s is not None and times.decode_s is not None:
            self.inference_s.observe(times.prefill_s + times.decode_s)
        self._keeps("ttft", times.ttft_s)
        if times.decode_s is not None and event.longest > 1:
            tpot_s = times.decode_s / (event.longest - 1)
            self.tpot_s.observe(tpot_s)
            self.otel_tpot_s[operation].observe(tpot_s)
            self._keeps("tpot", tpot_s)

    def _keeps(self, objective: str, seconds: float | None) -> None:
        limit_s = self._targets[objective]
        if limit_s > 0 and seconds is not None:
            self._meets(objective, seconds <= limit_s)

    def _meets(self, objective: str, has_met: bool) -> None:
        self.slo[objective, MET_OR_MISSED[not has_met]] += 1


def _is_ours(error: PagewireError) -> bool:
    """True for what a caller did nothing to deserve."""
    if isinstance(error, Refused):
        return error.reason not in OF_TENANTS
    return isinstance(error, Overloaded) or status_of(error).http >= 500
