"""Prompts of a session's turns, as they grow by what is answered, in each of the forms that a server takes."""

from __future__ import annotations

import pytest

from pagewire.slo.load.ask import Chat, Part
from pagewire.slo.load.conversation import Conversation, Wording, words_of
from pagewire.slo.load.pieces import Vocabulary, tokens_of, tokens_of_piece
from pagewire.slo.workloads.arrival import Turn

WORDS = Vocabulary(low=0, high=1 << 20)
PIECES = Wording(piece_tokens=4, seed=3, vocabulary=WORDS)
CHAT = Wording(piece_tokens=4, seed=3, vocabulary=WORDS, is_chat=True)
FIRST, SECOND = (Turn(input_tokens=6, output_tokens=5, pieces=pieces) for pieces in ((1, 2), (3, 4)))


def tokens(turn: Turn) -> tuple[int, ...]:
    return tokens_of(turn, 4, seed=3, vocabulary=WORDS)


def test_token_ids_grow_by_those_that_a_server_names() -> None:
    talk = Conversation(PIECES, number=0)
    prompt = talk.prompt(FIRST)
    assert prompt == tokens(FIRST)
    parts = [Part(at_s=1.0), Part(at_s=2.0, token_ids=(7, 8)), Part(at_s=3.0, token_ids=(9,))]
    assert talk.answered(prompt, FIRST, parts).prompt(SECOND) == (*tokens(FIRST), 7, 8, 9, *tokens(SECOND))


def made_up(number: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens that stand for an answer which a server did not name."""
    said = Conversation(PIECES, number).answered(prompt, FIRST, [Part(at_s=1.0, text="a")]).said
    assert isinstance(said, tuple)
    assert said[: len(prompt)] == prompt
    return said[len(prompt) :]


def test_tokens_that_no_server_named_are_made_up_as_many_and_nobody_elses() -> None:
    answers = [made_up(number, (5,) * length) for number in range(4) for length in (1, 2, 3, 40)]
    assert {len(each) for each in answers} == {FIRST.output_tokens}
    assert len({*answers}) == len(answers)
    assert made_up(2, (5, 5)) == made_up(2, (5, 5))
    pieces = {tokens_of_piece(piece, FIRST.output_tokens, seed=3, vocabulary=WORDS) for piece in range(64)}
    assert not pieces & {*answers}


def test_a_text_grows_by_the_text_of_its_answer() -> None:
    talk = Conversation(Wording(piece_tokens=4, seed=3), number=0)
    turns = [Turn(input_tokens=1, output_tokens=1, text=text) for text in ("What? ", " And?")]
    prompt = talk.prompt(turns[0])
    assert prompt == "What? "
    parts = [Part(at_s=1.0, text="This "), Part(at_s=2.0, text="one.")]
    assert talk.answered(prompt, turns[0], parts).prompt(turns[1]) == "What? This one. And?"


def test_messages_alternate_between_who_asks_and_who_answers() -> None:
    talk = Conversation(CHAT, number=0)
    turn = Turn(input_tokens=1, output_tokens=1, text="What?")
    prompt = talk.prompt(turn)
    assert prompt == Chat((("user", "What?"),))
    later = talk.answered(prompt, turn, [Part(at_s=1.0, text="This.")])
    assert later.prompt(turn) == Chat((("user", "What?"), ("assistant", "This."), ("user", "What?")))
    assert talk.prompt(FIRST) == Chat((("user", words_of(tokens(FIRST))),))


def test_a_session_keeps_its_form() -> None:
    with pytest.raises(TypeError, match="changes its form"):
        Conversation(PIECES, number=0, said="a text").prompt(FIRST)


def test_equal_tokens_are_equal_words_and_others_are_others() -> None:
    assert words_of((0, 1, 100, 9999, 10_000)) == "baba babe beba zuzu baba"
    words = words_of(range(10_000)).split(" ")
    assert len({*words}) == 10_000
    assert {len(word) for word in words} == {4}
