"""Who may be placed on, and what is believed of pods that have measured nothing yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.core.fingerprint import Fingerprint
from pagewire.core.load import Load
from pagewire.core.messages import Role
from pagewire.router.policies.view import PRIORS, PodView, Priors
from pagewire.router.roster import WEIGHT, Roster, member_of

ONE = Fingerprint(
    model_name="m", model_digest="d", tokenizer_digest="t", kv_fingerprint="k", kv_layout="l", block_size=16,
    hash_version=1, max_model_len=8192,
)  # fmt: skip
OTHER = replace(ONE, model_name="n")


def view(name: str, role: Role = Role.DECODE, *, incarnation: str = "1", in_flight: int = 0) -> PodView:
    return PodView(pod_id=name, address="a", role=role, load=Load(), in_flight=in_flight, key=f"{name}@{incarnation}#1")


def test_a_key_names_a_member_and_one_of_its_links() -> None:
    assert [member_of(key) for key in ("d0@7#1", "d#0@7#12", "d0", "")] == ["d0@7", "d#0@7", "", ""]


def test_pods_are_apart_by_what_they_serve_and_what_they_are_for() -> None:
    roster = Roster()
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE), ("c", Role.COLOCATED)):
        roster.put(ONE, view(name, role))
    roster.put(OTHER, view("x"))
    assert [each.pod_id for each in roster.decode(ONE)] == ["c", "d"]
    assert [each.pod_id for each in roster.prefill(ONE)] == ["p"]
    assert [each.pod_id for each in roster.decode(OTHER)] == ["x"]
    assert list(roster.prefill(OTHER)) == []


def test_what_is_new_of_a_pod_takes_the_place_of_what_was_known() -> None:
    roster = Roster()
    for name in ("b", "a", "c"):
        roster.put(ONE, view(name))
    roster.put(ONE, view("b", in_flight=7))
    assert [(each.pod_id, each.in_flight) for each in roster.decode(ONE)] == [("a", 0), ("b", 7), ("c", 0)]


def test_a_pod_goes_by_the_name_of_its_incarnation_and_from_whichever_group_it_is_in() -> None:
    roster = Roster()
    for name in ("b", "a", "c"):
        roster.put(ONE, view(name))
        roster.put(ONE, view(name, Role.PREFILL))
    roster.drop(ONE, "b", "b@2")
    roster.drop(OTHER, "b", "b@1")
    roster.drop(ONE, "bb", "bb@1")
    roster.drop(ONE, "bb", "c@1")  # which comes next
    roster.drop(ONE, "z", "z@1")
    assert len(roster.decode(ONE)) == len(roster.prefill(ONE)) == 3
    roster.drop(ONE, "b", "b@1")
    assert [each.pod_id for each in roster.decode(ONE)] == [each.pod_id for each in roster.prefill(ONE)] == ["a", "c"]
    roster.drop(ONE, "c", "c@1")
    roster.drop(ONE, "a", "a@1")
    assert roster.decode(ONE) == roster.decode(OTHER) == ()  # nothing is kept for what nobody serves any more
    roster.put(ONE, view("a"))
    assert [each.pod_id for each in roster.decode(ONE)] == ["a"]


MOVES = st.tuples(
    st.booleans(), st.sampled_from("abcde"), st.sampled_from(["1", "2"]), st.sampled_from([Role.DECODE, Role.PREFILL])
)


@given(st.lists(MOVES, max_size=60))
def test_groups_are_in_the_order_of_ids_with_one_view_of_each_whatever_comes_and_goes(
    moves: list[tuple[bool, str, str, Role]],
) -> None:
    roster, known = Roster(), dict[tuple[Role, str], PodView]()
    for is_put, name, incarnation, role in moves:
        if is_put:
            known[role, name] = view(name, role, incarnation=incarnation)
            roster.put(ONE, known[role, name])
        else:
            roster.drop(ONE, name, f"{name}@{incarnation}")
            known = {at: each for at, each in known.items() if each.key != f"{name}@{incarnation}#1"}
        for of, views in ((Role.DECODE, roster.decode(ONE)), (Role.PREFILL, roster.prefill(ONE))):
            assert list(views) == [known[at] for at in sorted(known) if at[0] is of]


def test_what_others_measured_is_believed_and_newer_figures_move_it_a_little() -> None:
    roster = Roster()
    assert roster.priors == PRIORS
    roster.learn(Load(prefill_s_per_token=0.5))
    assert (roster.priors.token_s, roster.priors.step_s) == (0.5, PRIORS.step_s)
    roster.learn(Load(prefill_s_per_token=0.1, step_s=0.02, link_rtt_s=0.003))
    assert roster.priors.token_s == pytest.approx(0.5 - WEIGHT * 0.4)
    assert (roster.priors.step_s, roster.priors.rtt_s) == (0.02, 0.003)
    roster.learn(Load())
    assert roster.priors.token_s == pytest.approx(0.5 - WEIGHT * 0.4)
    for _ in range(200):
        roster.learn(Load(prefill_s_per_token=0.1))
    assert roster.priors.token_s == pytest.approx(0.1)


def test_each_figure_is_learned_by_itself_the_first_at_once_and_the_next_by_its_weight() -> None:
    roster = Roster()
    roster.learn(Load(step_s=0.5, link_rtt_s=0.25))
    assert roster.priors == Priors(token_s=PRIORS.token_s, step_s=0.5, rtt_s=0.25)
    roster.learn(Load(prefill_s_per_token=0.75, step_s=0.25, link_rtt_s=0.5))
    assert roster.priors.token_s == 0.75
    assert roster.priors.step_s == pytest.approx(0.5 - WEIGHT * 0.25)
    assert roster.priors.rtt_s == pytest.approx(0.25 + WEIGHT * 0.25)
    assert 0 < WEIGHT < 1
