"""The gRPC front door: `pagewire.v1.Inference`.

Knows the public protobuf messages; what a request does is in `dispatch.py`. A call that ends cancels its request.
Errors are rich statuses.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from pagewire.core.errors import PagewireError
from pagewire.core.fingerprint import Fingerprint
from pagewire.core.sampling import Grammar, GrammarKind, TokenBias
from pagewire.protos import inference_pb2 as pb
from pagewire.protos import inference_pb2_grpc
from pagewire.router.dispatch import Dispatcher
from pagewire.router.guided import ANY_OBJECT
from pagewire.router.intake import Intake
from pagewire.router.pods import PodPool
from pagewire.router.request import Ask, Chunk, Ending, Event, Finished, ScoredToken
from pagewire.serving.grpc_server import abort

SERVICE = "pagewire.v1.Inference"

Context = grpc.aio.ServicerContext[Any, Any]


class Inference(inference_pb2_grpc.InferenceServicer):
    """The public service."""

    def __init__(self, dispatcher: Dispatcher, intake: Intake, pool: PodPool) -> None:
        self._dispatcher = dispatcher
        self._intake = intake
        self._pool = pool

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve on `server`; call before it starts."""
        inference_pb2_grpc.add_InferenceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> AsyncIterator[pb.GenerateResponse]:
        """Stream an answer."""
        request_id = request.request_id or uuid.uuid4().hex
        try:
            ask = _ask(request, request_id, context.time_remaining())
            async with aclosing(self._dispatcher.answer(ask)) as events:
                async for event in events:
                    yield _response(request_id, event)
        except PagewireError as error:
            await abort(context, error, request_id)

    async def GetModelInfo(self, _request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        """Name what is served."""
        try:
            limits = self._intake.limits()
        except PagewireError as error:
            await abort(context, error)
        fingerprint: Fingerprint | None = self._pool.fingerprint
        return pb.GetModelInfoResponse(
            model=limits.model,
            max_model_len=limits.max_model_len,
            block_size=fingerprint.block_size if fingerprint is not None else 0,
            vocab_size=limits.vocab_size,
        )


def _ask(request: pb.GenerateRequest, request_id: str, timeout_s: float | None) -> Ask:
    form = request.WhichOneof("prompt")
    sampling = request.sampling

    def given(name: str) -> Any:
        return getattr(sampling, name) if sampling.HasField(name) else None

    messages = tuple({"role": message.role, "content": message.content} for message in request.chat.messages)
    return Ask(
        request_id=request_id,
        model=request.model,
        text=request.text if form == "text" else None,
        token_ids=tuple(request.tokens.token_ids) if form == "tokens" else None,
        messages=messages if form == "chat" else None,
        n=given("n"),
        use_beam_search=sampling.use_beam_search,
        beam_width=given("beam_width"),
        length_penalty=given("length_penalty"),
        early_stopping=given("early_stopping"),
        max_tokens=given("max_tokens"),
        temperature=given("temperature"),
        top_k=given("top_k"),
        top_p=given("top_p"),
        min_p=given("min_p"),
        typical_p=given("typical_p"),
        repetition_penalty=given("repetition_penalty"),
        presence_penalty=given("presence_penalty"),
        frequency_penalty=given("frequency_penalty"),
        min_tokens=given("min_tokens"),
        logit_bias=tuple(TokenBias(token=token, bias=bias) for token, bias in sorted(sampling.logit_bias.items())),
        allowed_token_ids=tuple(sampling.allowed_token_ids),
        bad_words=(*sampling.bad_words, *(tuple(word.token_ids) for word in sampling.bad_word_tokens)),
        grammar=_grammar(sampling.guide),
        logprobs=given("logprobs"),
        prompt_logprobs=given("prompt_logprobs"),
        seed=given("seed"),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
        cache_salt=request.cache_salt or None,
        priority=request.priority,
        timeout_s=timeout_s,
    )


def _grammar(guide: pb.Guide) -> Grammar | None:
    match guide.WhichOneof("guide"):
        case "json_schema":
            kind, text = GrammarKind.JSON_SCHEMA, guide.json_schema
        case "regex":
            kind, text = GrammarKind.REGEX, guide.regex
        case "lark":
            kind, text = GrammarKind.LARK, guide.lark
        case "json_object" if guide.json_object:
            kind, text = GrammarKind.JSON_SCHEMA, ANY_OBJECT
        case _:
            return None
    return Grammar(kind=kind, text=text, field="guide")


def _scored(tokens: tuple[ScoredToken, ...]) -> list[pb.TokenLogprob]:
    return [
        pb.TokenLogprob(
            token_id=token.token_id, data=token.data, logprob=token.logprob, rank=token.rank, top=_scored(token.top)
        )
        for token in tokens
    ]


def _response(request_id: str, event: Event) -> pb.GenerateResponse:
    if isinstance(event, Chunk):
        chunk = pb.Chunk(
            index=event.index,
            text=event.text,
            token_ids=event.token_ids,
            logprobs=_scored(event.logprobs),
            ending=_ending(event.ending) if event.ending is not None else None,
        )
        return pb.GenerateResponse(request_id=request_id, chunk=chunk)
    return pb.GenerateResponse(request_id=request_id, complete=_complete(event))


def _ending(ending: Ending) -> pb.Ending:
    return pb.Ending(
        finish_reason=ending.finish_reason.value,
        stop_text=ending.stop_text,
        stop_token_id=ending.stop_token_id,
        cumulative_logprob=ending.cumulative_logprob,
        score=ending.score,
    )


def _complete(event: Finished) -> pb.Complete:
    complete = pb.Complete(
        endings=[_ending(ending) for ending in event.endings],
        usage=pb.Usage(
            prompt_tokens=event.usage.prompt_tokens,
            completion_tokens=event.usage.completion_tokens,
            cached_tokens=event.usage.cached_tokens,
        ),
        timelines=[
            pb.Timeline(
                process=timeline.process,
                stamps=[pb.Stamp(phase=stamp.phase.value, at_s=stamp.at_s) for stamp in timeline.stamps],
            )
            for timeline in event.timelines
        ],
        prompt_token_ids=event.prompt,
        prompt_logprobs=_scored(event.prompt_logprobs),
    )
    if event.report is not None:
        names = (field.name for field in pb.Transfer.DESCRIPTOR.fields)
        complete.transfer.CopyFrom(pb.Transfer(**{name: getattr(event.report, name) for name in names}))
    return complete
