"""Chunks gathered to an interval: nothing is lost or changed, and none is sent before it is due."""

from __future__ import annotations

import functools

from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.sampling import FinishReason
from pagewire.router.delivery import Delivery, joined
from pagewire.router.events import Chunk, Ending
from pagewire.text.tools.reader import CallPart

END = Ending(finish_reason=FinishReason.STOP)


def chunks(sizes: list[int], index: int, num_opening: int, num_reasoning: int) -> list[Chunk]:
    """Return the chunks of one answer, as many tokens in each; every third token goes on with a call or begins one.

    The first tokens are reasoning, and the first of these its opening mark, which is known once it is whole.
    """
    told, count = [], 0
    for place, size in enumerate(sizes):
        tokens = tuple(range(count, count + size))
        calls = {token // 9: "" for token in tokens if token % 3 == 2}
        for token in tokens:
            if token % 3 == 2:
                calls[token // 9] += str(token)
        parts = tuple(
            CallPart(index=call, name="f" if call * 9 + 2 in tokens else "", arguments=text)
            for call, text in calls.items()
        )
        text = "".join(f" {token}" for token in tokens if token % 3 != 2)
        ending = END if place == len(sizes) - 1 else None
        known = tuple(token for token in tokens if token < num_reasoning) if tokens[-1] + 1 >= num_opening else ()
        told.append(
            Chunk(
                text=text,
                token_ids=tokens,
                index=index,
                calls=parts,
                ending=ending,
                reasoning="".join(f" {token}" for token in known),
                num_reasoning=len(known),
            )
        )
        count += size
    return told


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=20)
MARKS = st.integers(0, 9).flatmap(lambda opening: st.tuples(st.just(opening), st.integers(opening, 20)))


@given(first=SIZES, second=SIZES, marks=MARKS, interval=st.integers(1, 12), data=st.data())
def test_what_is_handed_out_is_what_came_in_in_pieces_that_are_due(
    first: list[int], second: list[int], marks: tuple[int, int], interval: int, data: st.DataObject
) -> None:
    waiting = [chunks(first, 0, 0, 0), chunks(second, 1, *marks)]
    whole = [functools.reduce(joined, each) for each in waiting]
    is_known = sum(second) >= marks[0]
    assert [each.num_reasoning for each in whole] == [0, min(marks[1], sum(second)) if is_known else 0]
    came: list[list[Chunk]] = [[], []]
    delivery, told = Delivery((), interval), list[Chunk]()
    while any(waiting):
        chunk = waiting[data.draw(st.sampled_from([place for place in (0, 1) if waiting[place]]))].pop(0)
        came[chunk.index].append(chunk)
        event = delivery.take(chunk)
        held = sum(len(each.token_ids) for each in came[chunk.index])
        is_due = len(told) == 0 or chunk.index not in {each.index for each in told}
        is_due |= chunk.ending is not None or held >= interval
        assert (event is not None) == is_due
        if isinstance(event, Chunk):
            assert len(event.token_ids) == held
            came[chunk.index].clear()
            told.append(event)
    for index in (0, 1):
        assert functools.reduce(joined, (each for each in told if each.index == index)) == whole[index]
