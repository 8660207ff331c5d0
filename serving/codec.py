"""Messages to bytes and back: one mechanism for every frame, by field name.

A message dataclass and its protobuf have the same field names (a test holds them together), so
the mapping is read off the dataclass once, at construction. Protobuf types stop here. Knows nothing of streams.

A frame that does not parse, or holds a value outside its type, is `PeerMismatch`: the link it came over is closed,
nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from pagewire.core.engine_messages import EngineMessage
from pagewire.core.errors import PeerMismatch
from pagewire.core.messages import COLUMNS_SINCE, LinkMessage
from pagewire.core.token_record import TokenRecord
from pagewire.protos import engine_pb2, link_pb2

Value = Any  # a message dataclass, or one of the values inside it
M = TypeVar("M")
MAX_GREETING_BYTES = 64 << 10
_MISSING = object()  # what is unset of a field that has to be there


class _Field(Protocol):
    """How one field goes into a protobuf, and how it comes out; `unset` is what it is where nobody sets it.

    `take` is None where a value comes out as what it is.
    """

    @property
    def name(self) -> str: ...

    @property
    def unset(self) -> Value: ...

    def put(self, value: Value, into: Message) -> None: ...

    @property
    def take(self) -> Callable[[Any], Value] | None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Scalar:
    name: str
    unset: Value
    take: Callable[[Any], Value] | None = None

    def put(self, value: Value, into: Message) -> None:
        setattr(into, self.name, value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Scalars:
    name: str
    unset: Value = ()
    take: Callable[[Any], Value] = tuple

    def put(self, value: Value, into: Message) -> None:
        getattr(into, self.name).extend(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Nested:
    name: str
    record: _Record
    unset: Value

    def put(self, value: Value, into: Message) -> None:
        nested = getattr(into, self.name)
        nested.SetInParent()
        self.record.put(value, nested)

    def take(self, value: Any) -> Value:
        return self.record.take(value)


@dataclasses.dataclass(frozen=True, slots=True)
class _NestedList:
    name: str
    record: _Record
    unset: Value = ()

    def put(self, value: Value, into: Message) -> None:
        repeated = getattr(into, self.name)
        for item in value:
            self.record.put(item, repeated.add())

    def take(self, value: Any) -> Value:
        return tuple([self.record.take(item) for item in value])


class _Record:
    """All fields of one dataclass. What is unset is passed over on both ways: this runs for every token."""

    def __init__(self, kind: type, fields: tuple[_Field, ...]) -> None:
        self._kind = kind
        self._puts = tuple((field.name, field.unset, field.put) for field in fields)
        self._takes = {field.name: field.take for field in fields}
        self._unset = {field.name: field.unset for field in fields if field.unset is not _MISSING}
        self._due = self._takes.keys() - self._unset.keys()

    def put(self, value: Value, into: Message) -> None:
        for name, unset, put in self._puts:
            if (given := getattr(value, name)) != unset:
                put(given, into)

    def take(self, out_of: Message) -> Value:
        values, takes = self._unset.copy(), self._takes
        for field, value in out_of.ListFields():
            take = takes[name := field.name]
            values[name] = value if take is None else take(value)
        if self._due and (missing := self._due - values.keys()):
            raise PeerMismatch(f"{out_of.DESCRIPTOR.full_name} came without its {', '.join(sorted(missing))}")
        return self._kind(**values)


class _StepRecord(_Record):
    """A kind that has the `records` of a step. Nearly all of them tell the next token of the one sequence of a request.

    As columns, `plain` in the contract, they cost a quarter of what messages of their own do, at both ends. Who
    `has_columns` says them so; all hear them.
    """

    def __init__(self, kind: type, fields: tuple[_Field, ...], *, has_columns: bool) -> None:
        super().__init__(kind, fields)
        self._has_columns = has_columns

    def put(self, value: Value, into: Any) -> None:
        plain = [record for record in value.records if _is_plain(record)] if self._has_columns else []
        if plain:
            columns = into.plain
            columns.request_ids.extend([record.request_id for record in plain])
            columns.positions.extend([record.position for record in plain])
            columns.tokens.extend([record.tokens[0] for record in plain])
            others = tuple([record for record in value.records if not _is_plain(record)])
            value = dataclasses.replace(value, records=others)
        super().put(value, into)

    def take(self, out_of: Any) -> Value:
        if not out_of.HasField("plain"):
            return super().take(out_of)
        columns = out_of.plain
        of_each = zip(columns.request_ids, columns.positions, columns.tokens, strict=True)
        plain = [
            TokenRecord(request_id=request_id, index=0, position=position, tokens=(token,))
            for request_id, position, token in of_each
        ]
        out_of.ClearField("plain")
        value = super().take(out_of)
        return dataclasses.replace(value, records=(*plain, *value.records))


def _is_plain(record: TokenRecord) -> bool:
    return (
        len(record.tokens) == 1
        and record.index == 0
        and record.finish_reason is None
        and not (record.logprobs or record.prompt_logprobs)
        and record.cumulative_logprob is None
        and record.score is None
    )


def _record(kind: Any) -> _Record:
    return _Record(kind, _fields(kind))


def _fields(kind: Any) -> tuple[_Field, ...]:
    hints = typing.get_type_hints(kind)
    return tuple(_field(field.name, hints[field.name]) for field in dataclasses.fields(kind))


def _field(name: str, hint: Any) -> _Field:
    optional = False
    if typing.get_origin(hint) is types.UnionType or typing.get_origin(hint) is typing.Union:
        (hint,) = (arm for arm in typing.get_args(hint) if arm is not type(None))
        optional = True
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return _NestedList(name, _record(item)) if dataclasses.is_dataclass(item) else _Scalars(name)
    if isinstance(hint, typing.NewType):
        hint = hint.__supertype__
    if dataclasses.is_dataclass(hint):
        return _Nested(name, _record(hint), None if optional else _MISSING)
    if not (isinstance(hint, type) and issubclass(hint, (str, int, float, bool, bytes))):
        raise TypeError(f"no wire form for {name}: {hint}")
    # Only an enum needs converting: every other scalar has its type already.
    if issubclass(hint, StrEnum):
        return _Scalar(name, None if optional else _MISSING, hint)
    return _Scalar(name, None if optional else hint())


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Codec(Generic[M]):
    """Encodes and decodes the frames of one contract; without `has_columns`, for those who know none."""

    def __init__(self, frame: type[Message], kinds: tuple[type[M], ...], *, has_columns: bool = True) -> None:
        self._frame = frame
        self._records: dict[type[M], tuple[str, _Record]] = {}
        for kind in kinds:
            name, fields = _snake(kind.__name__), _fields(kind)
            body = frame.DESCRIPTOR.fields_by_name[name].message_type
            is_step = body is not None and "plain" in body.fields_by_name
            record = _StepRecord(kind, fields, has_columns=has_columns) if is_step else _Record(kind, fields)
            self._records[kind] = name, record
        self._kinds = dict(self._records.values())

    def encode(self, message: M) -> bytes:
        """Return the frame that carries `message`."""
        frame = self._frame()
        self.put(message, frame)
        return frame.SerializeToString()

    def put(self, message: M, frame: Message) -> None:
        """Write `message` into an empty frame."""
        name, record = self._records[type(message)]
        body = getattr(frame, name)
        body.SetInParent()
        record.put(message, body)

    def decode(self, data: bytes) -> M:
        """Return the message in a frame; raises PeerMismatch where there is none that we know."""
        return self.take(_parsed(self._frame(), data))

    def take(self, frame: Message) -> M:
        """Return the message in a parsed frame; raises PeerMismatch where there is none that we know."""
        name = frame.WhichOneof("body")
        if name is None:
            raise PeerMismatch("an empty frame, or one of a newer wire version")
        try:
            message: M = self._kinds[name].take(getattr(frame, name))
        except ValueError as error:
            raise PeerMismatch(f"a frame with a value that is none: {error}") from error
        return message


class BatchCodec(Generic[M]):
    """The same for frames that travel together: what `encode` returned, joined, is what `decode` takes."""

    def __init__(self, batch: type[Any], codec: Codec[M]) -> None:
        self._batch = batch
        self._codec = codec

    def encode(self, message: M) -> bytes:
        """Return a batch that holds `message` alone."""
        batch = self._batch()
        self._codec.put(message, batch.frames.add())
        data: bytes = batch.SerializeToString()
        return data

    def decode(self, data: bytes) -> Iterator[M]:
        """Yield the messages of a batch; raises PeerMismatch at the first that is none."""
        frames = _parsed(self._batch(), data).frames
        if not frames:
            raise PeerMismatch("a batch without frames, or one of another wire version")
        for frame in frames:
            yield self._codec.take(frame)

    def decode_one(self, data: bytes) -> M:
        """Return the message of a batch that must hold no more, of whom nothing is known yet; raises PeerMismatch.

        Its length goes first: what is small on the wire may be large here, and take long.
        """
        if len(data) > MAX_GREETING_BYTES:
            raise PeerMismatch(f"a greeting of {len(data)} bytes, where {MAX_GREETING_BYTES} may be")
        messages = list(self.decode(data))
        if len(messages) != 1:
            raise PeerMismatch(f"{len(messages)} frames where one was due")
        return messages[0]


def _parsed(into: Any, data: bytes) -> Any:
    try:
        into.ParseFromString(data)
    except DecodeError as error:
        raise PeerMismatch(f"a frame that does not parse: {error}") from error
    return into


def _link_codec(*, has_columns: bool) -> BatchCodec[LinkMessage]:
    codec = Codec(link_pb2.Frame, typing.get_args(LinkMessage), has_columns=has_columns)
    return BatchCodec(link_pb2.Frames, codec)


LINK_CODEC = _link_codec(has_columns=True)
_PLAIN_LINK_CODEC = _link_codec(has_columns=False)
ENGINE_CODEC: Codec[EngineMessage] = Codec(engine_pb2.Frame, typing.get_args(EngineMessage))


def link_codec(wire_version: int) -> BatchCodec[LinkMessage]:
    """Return how frames are said to a peer with which a link speaks `wire_version`."""
    return LINK_CODEC if wire_version >= COLUMNS_SINCE else _PLAIN_LINK_CODEC
