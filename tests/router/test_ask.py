"""What is asked where nothing more is said than a prompt."""

from __future__ import annotations

from pagewire.core.sampling import SamplingParams
from pagewire.router.ask import AS_USUAL, CHAT, COMPLETION, Ask
from pagewire.router.request import Request
from pagewire.router.validation import Limits, finish, sampling

LIMITS = Limits(model="m", max_model_len=100, vocab_size=50, max_timeout_s=60.0)


def test_messages_ask_for_a_chat_and_all_else_for_a_completion() -> None:
    said = [Ask(request_id="r", text="x"), Ask(request_id="r", token_ids=(1,)), Ask(request_id="r", messages=())]
    assert [ask.operation for ask in said] == [COMPLETION, COMPLETION, CHAT]
    assert (COMPLETION, CHAT) == ("text_completion", "chat")


def test_who_says_nothing_more_gets_what_is_usual() -> None:
    ask = Ask(request_id="r", text="x")
    assert sampling(ask, 16, seed=7, bad_words=()) == SamplingParams(max_tokens=16, seed=7)
    assert not ask.echo
    assert not ask.is_score
    assert finish(ask, (1, 2), LIMITS, seed=7) == Request(
        request_id="r", prompt=(1, 2), sampling=SamplingParams(max_tokens=16, seed=7), cache_salt="", timeout_s=60.0
    )
    assert (ask.priority, ask.explain) == (0, False)


def test_a_chat_usually_ends_with_the_assistants_turn_begun() -> None:
    assert (AS_USUAL.add_generation_prompt, AS_USUAL.continue_final_message) == (True, False)
    assert Ask(request_id="r", messages=()).chat == AS_USUAL
