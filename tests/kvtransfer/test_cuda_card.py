"""The card of a CUDA source: what is said is read, and nothing else is a card."""

from __future__ import annotations

import dataclasses

import pytest

from pagewire.core.cuda_export import EXPORT_BYTES, HANDLE_BYTES, Export
from pagewire.core.errors import TransferFailed
from pagewire.core.token_door import TOKEN_BYTES
from pagewire.kvtransfer.transports.cuda_card import MAX_PARTS, NUM_EVENTS, CudaCard

PARTS = 4 + 8 + TOKEN_BYTES  # where their number is


def handle(number: int) -> bytes:
    return bytes((number + at) % 256 for at in range(HANDLE_BYTES))


CARD = CudaCard(
    num_blocks=2**40 + 7,
    token=bytes(range(TOKEN_BYTES)),
    parts=(Export(handle(1), 512), Export(handle(2), 2**50)),
    events=tuple(map(handle, range(NUM_EVENTS))),
    address=b"\0a socket",
)


@pytest.mark.parametrize(
    "card",
    [
        CARD,
        dataclasses.replace(CARD, events=()),
        dataclasses.replace(CARD, parts=CARD.parts[:1]),
        dataclasses.replace(CARD, parts=CARD.parts[:1] * MAX_PARTS, address=b"/a"),
    ],
)
def test_what_is_said_is_read(card: CudaCard) -> None:
    assert CudaCard.from_bytes(card.to_bytes()) == card
    size = PARTS + 8 + len(card.parts) * EXPORT_BYTES + len(card.events) * HANDLE_BYTES
    assert len(card.to_bytes()) == size + len(card.address)
    for cut in (0, PARTS + 7, PARTS + 8, size - 1, size):  # no address is no card either
        with pytest.raises(TransferFailed, match=r"a card of \d+ bytes|not the card of a CUDA source"):
            CudaCard.from_bytes(card.to_bytes()[:cut])
    assert CudaCard.from_bytes(card.to_bytes()[: size + 1]).address == card.address[:1]


@pytest.mark.parametrize(
    ("at", "number"),
    [(PARTS, 0), (PARTS, MAX_PARTS + 1), (PARTS, 2**32 - 1), (PARTS + 4, 1), (PARTS + 4, NUM_EVENTS + 1)],
)
def test_a_source_has_a_few_parts_and_all_events_or_none(at: int, number: int) -> None:
    data = bytearray(CARD.to_bytes() + bytes(2 * MAX_PARTS * EXPORT_BYTES))
    data[at : at + 4] = number.to_bytes(4, "little")
    with pytest.raises(TransferFailed, match="not the card of a CUDA source"):
        CudaCard.from_bytes(bytes(data))


def test_a_card_of_another_kind_is_none() -> None:
    with pytest.raises(TransferFailed, match="not the card of a CUDA source"):
        CudaCard.from_bytes(b"PWC1" + CARD.to_bytes()[4:])


@pytest.mark.parametrize("size", [0, EXPORT_BYTES - 1, EXPORT_BYTES + 1])
def test_an_export_has_its_size(size: int) -> None:
    with pytest.raises(ValueError, match=f"an export of {size} bytes"):
        Export.from_bytes(bytes(size))
