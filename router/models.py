"""The models behind one router: each with its tokenizer, intake, pods, placer, entrance and look-up in the index.

Knows names and what is linked; nothing of what a request does. Invariants: no two models answer to one name, and no
pod could belong to two.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewire.core.errors import Unavailable, UnknownModel
from pagewire.core.messages import Role
from pagewire.router.entrance import Entrance
from pagewire.router.intake import Intake
from pagewire.router.lookup import PrefixLookup
from pagewire.router.placing import Placer
from pagewire.router.pod import Pod
from pagewire.router.pods import PodPool
from pagewire.router.request_counts import RequestCounts
from pagewire.router.roster import DECODES
from pagewire.router.validation import Limits, unknown_model
from pagewire.text.tokenizer import Tokenizer

POD_ROLES = (Role.PREFILL, Role.DECODE, Role.COLOCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's tokenizer lies, and what the model is called; without a name, its pods say."""

    name: str
    folder: Path

    @classmethod
    def parse(cls, text: str) -> ModelSource:
        """Read NAME=FOLDER or FOLDER: what comes before the first "=" is the name."""
        name, has_name, folder = text.partition("=")
        return cls(name=name if has_name else "", folder=Path(folder if has_name else text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model of the router."""

    source: ModelSource
    tokenizer: Tokenizer
    intake: Intake
    pool: PodPool
    lookup: PrefixLookup
    placer: Placer
    entrance: Entrance
    counts: RequestCounts

    @property
    def name(self) -> str:
        """What callers name it; "" while neither the configuration nor a pod has said."""
        return self.pool.name

    @property
    def title(self) -> str:
        """A name for operators, at any time."""
        return self.name or self.source.folder.name

    @property
    def can_serve(self) -> bool:
        """True while some pod could take a request."""
        return bool(self.pool.usable(*DECODES))

    def num_pods(self) -> dict[Role, int]:
        """Return how many of its pods can be used, by role."""
        return {role: len(self.pool.usable(role)) for role in POD_ROLES}


class Models:
    """All of them, in the order in which they were given; raises ValueError where they could be mixed up."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        if not models:
            raise ValueError("a router needs at least one model")
        seen: dict[tuple[str, str], ServedModel] = {}
        for model in models:
            # A name tells pods apart; without one the tokenizer has to.
            key = ("name", model.source.name) if model.source.name else ("tokenizer", model.tokenizer.digest)
            if key in seen:
                told = f"the {key[0]} {key[1]}"
                raise ValueError(
                    f"the models in {seen[key].source.folder} and {model.source.folder} both have {told}: give each "
                    "a name of its own, NAME=FOLDER, by which its pods go too"
                )
            seen[key] = model
        self._models = tuple(models)
        self._linked = asyncio.Event()  # anew at every change
        for model in models:
            model.pool.on_change(self._note)

    def _note(self, _pod: Pod) -> None:
        self._linked.set()
        self._linked = asyncio.Event()

    def __iter__(self) -> Iterator[ServedModel]:
        """Yield every model."""
        return iter(self._models)

    @property
    def sole(self) -> ServedModel | None:
        """The model of a router that has no other."""
        return self._models[0] if len(self._models) == 1 else None

    @property
    def longest_context(self) -> int:
        """Tokens that the model may have in its context that may have most; 0 while none is known."""
        known = (model.pool.fingerprint for model in self._models)
        return max((each.max_model_len for each in known if each is not None), default=0)

    @property
    def can_serve(self) -> bool:
        """True while at least one model can."""
        return any(model.can_serve for model in self._models)

    def of(self, name: str) -> ServedModel:
        """Return the model that a request names, the first one for "".

        It may name an adapter of one. Raises UnknownModel, or Unavailable while a model's pods have not said yet how it
        is called, or those of none have said anything.
        """
        if not name:
            return self._models[0]
        for model in self._models:
            if name == model.name or name in model.pool.adapters:
                return model
        known = [model.pool.known is not None for model in self._models]
        if not all(model.name for model in self._models) or not any(known):
            raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
        raise unknown_model(name, [each for model in self._models for each in (model.name, *model.pool.adapters)])

    def is_settled(self, name: str) -> bool:
        """Return whether it is known what a request that names `name` is for, and what its pods serve."""
        try:
            return self.of(name).pool.fingerprint is not None
        except Unavailable:
            return False
        except UnknownModel:  # unless it is an adapter of a model that nothing is known of yet
            return all(model.pool.known is not None for model in self._models)

    async def until_settled(self, name: str, timeout_s: float) -> None:
        """Return once `is_settled`, or after `timeout_s` seconds: a router that came up links within moments."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_settled(name):
                    await self._linked.wait()

    def linked(self) -> list[Limits]:
        """Return what is served of each model whose pods have been linked; raises Unavailable before the first."""
        limits = [model.intake.limits() for model in self._models if model.pool.fingerprint is not None]
        if not limits:
            raise Unavailable("no pod has been linked yet", retry_after_s=1.0)
        return limits
