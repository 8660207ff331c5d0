"""Two tools, what a model of each format says when it calls both, and the folder of a model that says what it is told.

The folder's template writes the last message and the end of the sequence, and a fake pod repeats its prompt: so the
model "says" what the user wrote, and stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import byte_tokenizer
from fake_pod import FakePod, fingerprint

MARKS = {
    "hermes": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
    "llama3_json": "<|python_tag|>",
    "pythonic": "[func_name1(",
    "qwen3_coder": "<tool_call><function=f><parameter=a>",
    "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>",
    "kimi_k2": "<|tool_call_argument_begin|>",
    "harmony": "<|channel|>commentary to=functions.f",
    "granite": "<|tool_call|> followed by a JSON list",
}
SAYS = "{% if tools and false %}MARK{% endif %}{{ messages[-1].content }}<|im_end|>"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": "of today", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
SAID = {
    "hermes": 'I see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "東京 é"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": 'I see. [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "東京 é"}}, '
    '{"name": "now", "arguments": {}}]',
    "llama3_json": '{"name": "get_weather", "parameters": {"city": "東京 é"}}; {"name": "now", "parameters": {}}',
    "pythonic": "[get_weather(city='東京 é'), now()]",
    "qwen3_coder": "I see.\n<tool_call>\n<function=get_weather>\n<parameter=city>\n東京 é\n</parameter>\n</function>\n"
    "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "deepseek": 'I see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "東京 é"}'
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "glm": "I see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>東京 é</arg_value>\n</tool_call>\n"
    "<tool_call>now\n</tool_call>",
    "kimi_k2": "I see.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "東京 é"}<|tool_call_end|>'
    "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    "harmony": '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "東京 é"}<|call|>'
    "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}",
    "granite": 'I see.<|tool_call|>[{"name": "get_weather", "arguments": {"city": "東京 é"}}, '
    '{"name": "now", "arguments": {}}]',
}


def model(folder: Path, format_name: str) -> Path:
    """Write the folder of a model that "says" what the user wrote, and calls tools in a format."""
    return byte_tokenizer.save(folder, chat_template=SAYS.replace("MARK", MARKS[format_name]))


def speaker() -> FakePod:
    """Return the fake pod of such a model, whose context takes what it says twice, whatever its marks are."""
    return FakePod("c0", serves=fingerprint(max_model_len=4096))
