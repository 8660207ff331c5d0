"""The formats in which models write tool calls: each format's marks, its reading, and what a call looks like in it.

Pure; knows text only. How each is read is in `readings.py`.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, replace

from pagewire.text.tools import keyed, readings
from pagewire.text.tools.readings import DEEPSEEK_SEP, KIMI_K2_SEP, Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Keywords:
    """How arguments are written one by one: `before` a name, `middle`, the value as JSON, `after`; `between` two.

    Where there is a `text_end`, what may be a text stands there as it is, up to that, which `after` holds.
    """

    before: str = ""
    middle: str
    after: str = ""
    between: str = ""
    text_end: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls: `opening`, calls with `between` them, `closing`.

    A call is `before_name`, its name, `before_arguments`, a JSON object or `keywords`, `after_arguments`. What comes in
    pieces may be tokens. `marks` are to be seen in the text where they are special tokens. Calls that are nothing but
    JSON, as `is_json` says, cannot be told from an answer that is JSON. Where one `is_numbered`, a colon and a number
    stand behind the name, and templates take all that for the call's id. A `head` stands before an answer that is none.
    """

    name: str
    read: Reading
    opening: tuple[str, ...] = ()
    before_name: str
    before_arguments: tuple[str, ...]
    after_arguments: str
    between: tuple[str, ...]
    closing: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    keywords: Keywords | None = None
    is_json: bool = False
    is_numbered: bool = False
    head: tuple[str, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        """What may be tokens."""
        return (*self.opening, *self.before_arguments, *self.between, *self.closing, *self.head)

    def call_id(self, name: str, place: int) -> str:
        """Return the id of a call that is numbered: `place` others of the chat are before it."""
        return f"{self.before_name}{name}:{place}"


HERMES = ToolFormat(
    name="hermes",
    read=readings.hermes,
    opening=("<tool_call>", "\n"),
    between=("\n", "</tool_call>", "\n", "<tool_call>", "\n"),
    closing=("\n", "</tool_call>"),
    marks=("<tool_call>", "</tool_call>"),
    before_name='{"name": "',
    before_arguments=('", "arguments": ',),
    after_arguments="}",
)
MISTRAL = ToolFormat(
    name="mistral",
    read=readings.mistral,
    opening=("[TOOL_CALLS]", " ["),
    between=(", ",),
    closing=("]",),
    marks=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    before_name='{"name": "',
    before_arguments=('", "arguments": ',),
    after_arguments="}",
)
MISTRAL_NAMED = replace(  # as templates since 2025 have it
    MISTRAL,
    opening=("[TOOL_CALLS]",),
    between=("[TOOL_CALLS]",),
    closing=(),
    before_name="",
    before_arguments=("[ARGS]",),
    after_arguments="",
)
GRANITE = replace(
    MISTRAL, name="granite", read=readings.granite, opening=("<|tool_call|>", "["), marks=("<|tool_call|>",)
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    read=readings.llama3_json,
    before_name='{"name": "',
    before_arguments=('", "parameters": ',),
    after_arguments="}",
    between=("; ",),
    marks=("<|python_tag|>",),
    is_json=True,
)
PYTHONIC = ToolFormat(
    name="pythonic",
    read=readings.pythonic,
    opening=("[",),
    before_name="",
    before_arguments=("(",),
    after_arguments=")",
    between=(", ",),
    closing=("]",),
    keywords=Keywords(middle="=", between=", "),
)
QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    read=readings.qwen3_coder,
    opening=("<tool_call>", "\n"),
    before_name="<function=",
    before_arguments=(">\n",),
    after_arguments=keyed.QWEN3_CODER.closing,
    between=("\n", "</tool_call>", "\n", "<tool_call>", "\n"),
    closing=("\n", "</tool_call>"),
    marks=("<tool_call>", "</tool_call>"),
    keywords=Keywords(
        before=keyed.QWEN3_CODER.key, middle=">\n", after="\n</parameter>\n", text_end=keyed.QWEN3_CODER.end
    ),
)
_DEEPSEEK, _KIMI_K2 = readings.DEEPSEEK, readings.KIMI_K2
DEEPSEEK = ToolFormat(  # as V3 and R1 have it
    name="deepseek",
    read=readings.deepseek,
    opening=(_DEEPSEEK.begin, _DEEPSEEK.call, "function", DEEPSEEK_SEP),
    before_name="",
    before_arguments=("\n```json\n",),
    after_arguments="\n```",
    between=(_DEEPSEEK.end_call, "\n", _DEEPSEEK.call, "function", DEEPSEEK_SEP),
    closing=(_DEEPSEEK.end_call, _DEEPSEEK.end),
    marks=(*astuple(_DEEPSEEK), DEEPSEEK_SEP),
)
DEEPSEEK_PLAIN = replace(  # as V3.1 has it
    DEEPSEEK,
    opening=(_DEEPSEEK.begin, _DEEPSEEK.call),
    before_arguments=(DEEPSEEK_SEP,),
    after_arguments="",
    between=(_DEEPSEEK.end_call, _DEEPSEEK.call),
)
KIMI_K2 = ToolFormat(
    name="kimi_k2",
    read=readings.kimi_k2,
    opening=(_KIMI_K2.begin, _KIMI_K2.call),
    before_name="functions.",
    before_arguments=(KIMI_K2_SEP,),
    after_arguments="",
    between=(_KIMI_K2.end_call, _KIMI_K2.call),
    closing=(_KIMI_K2.end_call, _KIMI_K2.end),
    marks=(*astuple(_KIMI_K2), KIMI_K2_SEP),
    is_numbered=True,
)
GLM = ToolFormat(
    name="glm",
    read=readings.glm,
    opening=("<tool_call>",),
    before_name="",
    before_arguments=("\n",),
    after_arguments="",
    between=("</tool_call>", "\n", "<tool_call>"),
    closing=("</tool_call>",),
    marks=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    keywords=Keywords(
        before="<arg_key>", middle="</arg_key>\n<arg_value>", after="</arg_value>\n", text_end=keyed.GLM.end
    ),
)
GLM_INLINE = replace(  # as templates since 4.7 have it
    GLM,
    before_arguments=(),
    between=("</tool_call>", "<tool_call>"),
    keywords=Keywords(before="<arg_key>", middle="</arg_key><arg_value>", after="</arg_value>", text_end=keyed.GLM.end),
)
HARMONY = ToolFormat(
    name="harmony",
    read=readings.harmony,
    opening=("<|channel|>",),
    before_name="commentary to=functions.",
    before_arguments=(" ", "<|constrain|>", "json", "<|message|>"),
    after_arguments="",
    between=("<|call|>", "<|start|>", "assistant", "<|channel|>"),
    marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
    head=("<|channel|>", "final", "<|message|>"),
)
FORMATS = {
    each.name: each for each in (HERMES, MISTRAL, LLAMA3_JSON, PYTHONIC, QWEN3_CODER, DEEPSEEK, GLM, KIMI_K2, HARMONY)
}


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template tells its model to write, None where it tells none that is known."""
    if _DEEPSEEK.call in template:
        return DEEPSEEK if "```json" in template else DEEPSEEK_PLAIN
    if KIMI_K2_SEP in template:
        return KIMI_K2
    if "<|channel|>commentary" in template and "functions." in template:
        return HARMONY
    if "<|tool_call|> followed by a JSON list" in template:
        return GRANITE
    if "<function=" in template:
        # Some write JSON behind it, and Seed has a mark of its own around it.
        return QWEN3_CODER if keyed.QWEN3_CODER.key in template and "<tool_call>" in template else None
    if "<tool_call>" in template:
        # Hunyuan has the same mark, and something else behind it.
        if re.search("<tool_sep>|```json", template):
            return None
        if "<arg_key>" in template:
            return GLM_INLINE if "</arg_key><arg_value>" in template else GLM
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    if re.search(r"\[\s*func_name\d*\(", template):
        return PYTHONIC
    if "<|python_tag|>" in template or ('"parameters":' in template and "ipython" in template):
        return LLAMA3_JSON
    return None
