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
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from pagewire.core.engine_messages import EngineMessage
from pagewire.core.errors import PeerMismatch
from pagewire.core.messages import LinkMessage
from pagewire.protos import engine_pb2, link_pb2

Value = Any  # a message dataclass, or one of the values inside it
M = TypeVar("M")


class _Field(Protocol):
    """How one field goes into a protobuf, and how it comes out."""

    def put(self, value: Value, into: Message) -> None: ...

    def take(self, out_of: Message) -> Value: ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Scalar:
    name: str
    convert: Callable[[Any], Value]
    optional: bool

    def put(self, value: Value, into: Message) -> None:
        if value is not None:
            setattr(into, self.name, value)

    def take(self, out_of: Message) -> Value:
        if self.optional and not out_of.HasField(self.name):
            return None
        return self.convert(getattr(out_of, self.name))


@dataclasses.dataclass(frozen=True, slots=True)
class _Scalars:
    name: str

    def put(self, value: Value, into: Message) -> None:
        getattr(into, self.name).extend(value)

    def take(self, out_of: Message) -> Value:
        return tuple(getattr(out_of, self.name))


@dataclasses.dataclass(frozen=True, slots=True)
class _Nested:
    name: str
    record: _Record
    optional: bool

    def put(self, value: Value, into: Message) -> None:
        if value is not None:
            nested = getattr(into, self.name)
            nested.SetInParent()
            self.record.put(value, nested)

    def take(self, out_of: Message) -> Value:
        if not out_of.HasField(self.name):
            if self.optional:
                return None
            raise PeerMismatch(f"{out_of.DESCRIPTOR.full_name} came without its {self.name}")
        return self.record.take(getattr(out_of, self.name))


@dataclasses.dataclass(frozen=True, slots=True)
class _NestedList:
    name: str
    record: _Record

    def put(self, value: Value, into: Message) -> None:
        repeated = getattr(into, self.name)
        for item in value:
            self.record.put(item, repeated.add())

    def take(self, out_of: Message) -> Value:
        return tuple(self.record.take(item) for item in getattr(out_of, self.name))


@dataclasses.dataclass(frozen=True, slots=True)
class _Record:
    """All fields of one dataclass."""

    kind: type
    fields: tuple[_Field, ...]

    def put(self, value: Value, into: Message) -> None:
        for field, name in zip(self.fields, dataclasses.fields(self.kind), strict=True):
            field.put(getattr(value, name.name), into)

    def take(self, out_of: Message) -> Value:
        names = (field.name for field in dataclasses.fields(self.kind))
        return self.kind(**{name: field.take(out_of) for name, field in zip(names, self.fields, strict=True)})


def _record(kind: Any) -> _Record:
    hints = typing.get_type_hints(kind)
    return _Record(kind, tuple(_field(field.name, hints[field.name]) for field in dataclasses.fields(kind)))


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
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _Nested(name, _record(hint), optional)
    if not (isinstance(hint, type) and issubclass(hint, (str, int, float, bool, bytes))):
        raise TypeError(f"no wire form for {name}: {hint}")
    # Only an enum needs converting: every other scalar has its type already.
    return _Scalar(name, hint if issubclass(hint, StrEnum) else _same, optional)


def _same(value: Value) -> Value:
    return value


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Codec(Generic[M]):
    """Encodes and decodes the frames of one contract."""

    def __init__(self, frame: type[Message], kinds: tuple[type[M], ...]) -> None:
        self._frame = frame
        self._records = {kind: (_snake(kind.__name__), _record(kind)) for kind in kinds}
        self._kinds = dict(self._records.values())

    def encode(self, message: M) -> bytes:
        """Return the frame that carries `message`."""
        name, record = self._records[type(message)]
        frame = self._frame()
        body = getattr(frame, name)
        body.SetInParent()
        record.put(message, body)
        return frame.SerializeToString()

    def decode(self, data: bytes) -> M:
        """Return the message in a frame; raises PeerMismatch where there is none that we know."""
        frame = self._frame()
        try:
            frame.ParseFromString(data)
            name = frame.WhichOneof("body")
            if name is None:
                raise PeerMismatch("an empty frame, or one of a newer wire version")
            message: M = self._kinds[name].take(getattr(frame, name))
        except (DecodeError, ValueError) as error:
            raise PeerMismatch(f"a frame that does not parse: {error}") from error
        return message


LINK_CODEC: Codec[LinkMessage] = Codec(link_pb2.Frame, typing.get_args(LinkMessage))
ENGINE_CODEC: Codec[EngineMessage] = Codec(engine_pb2.Frame, typing.get_args(EngineMessage))
