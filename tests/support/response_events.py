"""What a client makes of the events of a response's stream: items, each held against what was told of it at its end."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any


def rebuilt(told: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items that a client makes of a stream's deltas, each as it was told to be at its end."""
    items: list[dict[str, Any]] = []
    argued: set[str] = set()  # calls whose arguments were told to be whole
    for each in copy.deepcopy([*told]):
        assert each.get("content_index", 0) == 0
        assert "item_id" not in each or (each["item_id"], each["output_index"]) == (items[-1]["id"], len(items) - 1)
        match each["type"]:
            case "response.output_item.added":
                assert each["output_index"] == len(items)
                assert each["item"]["status"] == "in_progress"
                items.append(each["item"])
            case "response.content_part.added":
                assert (each["content_index"], items[-1]["content"]) == (0, [])
                items[-1]["content"] = [each["part"]]
            case "response.output_text.delta" | "response.reasoning_text.delta":
                part = items[-1]["content"][0]
                part["text"] += each["delta"]
                part["logprobs"] = part.get("logprobs", []) + each.get("logprobs", [])
            case "response.output_text.done" | "response.reasoning_text.done":
                assert items[-1]["content"][0]["text"] == each["text"]
            case "response.function_call_arguments.delta":
                items[-1]["arguments"] += each["delta"]
            case "response.function_call_arguments.done":
                assert (items[-1]["arguments"], items[-1]["name"]) == (each["arguments"], each["name"])
                argued.add(each["item_id"])
            case "response.output_item.done":
                items[-1]["status"] = each["item"]["status"]
                assert items[-1]["type"] != "function_call" or items[-1]["id"] in argued
                assert each["item"]["id"] == items[-1]["id"]
                if items[-1]["type"] == "reasoning":
                    items[-1]["content"][0].pop("logprobs")
                assert items[-1] == each["item"]
    return items
