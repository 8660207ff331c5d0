"""Random messages of any protobuf type, from its descriptor: valid and invalid, small and absurd.

Knows descriptors alone, so a field that is added is fuzzed without a word here. The same `Random` makes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

TEXTS = (
    "",
    "a",
    "hello world",
    "true",
    "never",
    "user",
    "fake",
    "c0",
    "\x00",
    "\ud7ff\ue000",
    "ä€😀" * 7,
    "{",
    "(",
    "x" * 3000,
)
BOUNDS = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
}
DOUBLES = (0.0, -0.0, 0.5, 1.0, 2.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
MAX_DEPTH = 4


def random_message(kind: Descriptor, random: Random, depth: int = 0) -> Message:
    """Return a message of `kind` with some of its fields set to anything that they can hold."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if random.random() < 0.3 and not _is_of_several(field):
            set_field(message, field, random, depth)
    for several in kind.oneofs:
        if _is_of_several(several.fields[0]) and random.random() < 0.9:
            set_field(message, random.choice(several.fields), random, depth)
    return message


def _is_of_several(field: FieldDescriptor) -> bool:
    """True for one of which but one may be set; a field that is merely optional has a oneof of its own."""
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def mutated(message: Message, random: Random) -> Message:
    """Return a copy of `message` with one field, perhaps of a message in it, set to anything."""
    copy = type(message)()
    copy.CopyFrom(message)
    place: Any = copy
    while True:
        field = random.choice(place.DESCRIPTOR.fields)
        if field.message_type is not None and field.is_repeated and random.random() < 0.7:
            items = getattr(place, field.name)
            if len(items) and not field.message_type.GetOptions().map_entry:
                place = random.choice(items)
                if place.DESCRIPTOR.fields:
                    continue
                return copy
        # Of what there may be one of, mostly the one that is there.
        if _is_of_several(field) and (there := place.WhichOneof(field.containing_oneof.name)) and random.random() < 0.8:
            field = place.DESCRIPTOR.fields_by_name[there]
        if field.message_type is None or field.is_repeated or random.random() < 0.3:
            place.ClearField(field.name)
            set_field(place, field, random, 0)
            return copy
        place = getattr(place, field.name)
        place.SetInParent()
        if not place.DESCRIPTOR.fields:
            return copy


def mutated_often(message: Message, random: Random) -> Message:
    """Return what up to three changes make of `message`."""
    for _ in range(random.randrange(4) if message.DESCRIPTOR.fields else 0):
        message = mutated(message, random)
    return message


def spoiled(data: bytes, random: Random) -> bytes:
    """Return what is perhaps no message any more, of the bytes of one; mostly they are left as they are."""
    match random.randrange(10):
        case 0:  # cut off, or not even a message
            return data[: random.randrange(len(data) + 1)] + random.randbytes(random.randrange(30))
        case 1:  # there is no wire type 7
            return data + b"\x0f"
        case 2:
            place = random.randrange(len(data) + 1)
            return data[:place] + random.randbytes(1) + data[place + 1 :]
        case _:
            return data


def set_field(message: Message, field: FieldDescriptor, random: Random, depth: int) -> None:
    """Set one field of `message`."""
    if field.message_type is not None:
        _set_message(message, field, random, depth)
        return
    value = _value(field, random)
    if field.is_repeated:
        getattr(message, field.name).extend(value() for _ in range(random.choice((1, 2, 17, 300))))
    else:
        setattr(message, field.name, value())


def _set_message(message: Message, field: FieldDescriptor, random: Random, depth: int) -> None:
    assert field.message_type is not None
    place = getattr(message, field.name)
    if depth >= MAX_DEPTH:
        return
    if field.message_type.GetOptions().map_entry:
        key, value = (_value(each, random) for each in field.message_type.fields)
        for _ in range(random.choice((1, 5, 400))):
            place[key()] = value()
    elif field.is_repeated:
        for _ in range(random.choice((1, 2, 30))):
            place.add().CopyFrom(random_message(field.message_type, random, depth + 1))
    else:
        place.CopyFrom(random_message(field.message_type, random, depth + 1))
        place.SetInParent()


def _value(field: FieldDescriptor, random: Random) -> Callable[[], Any]:
    if field.type in BOUNDS:
        low, high = BOUNDS[field.type]
        return lambda: max(low, min(high, random.choice((low, high, 0, 1, -1, 2, random.randrange(300), 2**31))))
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return lambda: random.choice(DOUBLES)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return lambda: random.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda: random.randbytes(random.choice((0, 1, 16, 1000)))
    assert field.type == FieldDescriptor.TYPE_STRING, f"{field.full_name} is of a type that is not fuzzed yet"
    return lambda: random.choice(TEXTS)
