"""What arrives at a server: a request, or a session of them whose next turn waits for the last answer. Pure.

Knows neither clock nor server: a live run and the simulator play the same arrivals. Invariant: nothing here depends on
how a server answered; a later turn's prompt begins with all that went before it, answers included, and those are the
player's to fill in.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request: what its prompt adds to the conversation before it, and how many tokens answer it.

    `input_tokens` are those that this turn adds: the whole prompt, for the first one. What they say is either `text`
    (whose `input_tokens` are then an estimate, as nobody's tokenizer was asked) or the run of `pieces`, ids of
    Workload.piece_tokens tokens each, the last one cut to fit; equal ids are equal tokens. `think_s` passes between the
    end of the last answer and this turn, in seconds.
    """

    input_tokens: int
    output_tokens: int
    pieces: tuple[int, ...] = ()
    text: str = ""
    think_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be asked with ValueError."""
        if self.input_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"a turn has {self.input_tokens} input and {self.output_tokens} output tokens, not 1 each")
        if bool(self.pieces) == bool(self.text):
            raise ValueError("a turn has either pieces or text")
        if not self.think_s >= 0:
            raise ValueError(f"think_s is {self.think_s}, not 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A session that comes at `at_s` seconds after the start of its workload; most have one turn.

    Turn `k` is asked `turns[k].think_s` after the answer to turn `k - 1` ended. `priority` is that of requests (the
    lower the sooner), `model` is "" for the one that is served, `session` its name in a recording, "" for none.
    """

    at_s: float
    turns: tuple[Turn, ...]
    session: str = ""
    priority: int = 0
    model: str = ""

    def __post_init__(self) -> None:
        """Refuse what never arrives with ValueError."""
        if not self.at_s >= 0:
            raise ValueError(f"at_s is {self.at_s}, not 0 or more")
        if not self.turns:
            raise ValueError("an arrival has no turns")
        if len({bool(turn.text) for turn in self.turns}) > 1:
            raise ValueError("the turns of a session are all texts or all pieces")

    def prompt_tokens(self, turn: int) -> int:
        """Return the length of the whole prompt of `turn`, where every answer before it has its `output_tokens`."""
        before = self.turns[:turn]
        return sum(each.input_tokens + each.output_tokens for each in before) + self.turns[turn].input_tokens
