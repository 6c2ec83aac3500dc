"""What an agent sends: a system prompt, tools, and a history in which they were used."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

ROUNDS = 8
"""Tools used before; the text of a prompt is what they returned, in as many parts whatever its length, so
that all but the text takes the same number of tokens."""

_SYSTEM = (
    "You are a careful software engineer who works in a repository through tools. Look before you change "
    "anything: list the files, read those that matter, search for every use of a name before you rename it. "
    "Make the smallest change that does what was asked, run the tests after each, and read what they say to "
    "the end. When a command fails, find out why instead of trying it again. Never touch files outside the "
    "repository and never install anything. Tell in one or two sentences what you did and what is still open."
)
_TASK = (
    "The import of old records has become slow since the last release. Find out why, and say what to change."
)
_READ = "I have read the files that the import goes through."
_QUESTION = "Which of them would you change first? Answer in one sentence."


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }


_TOOLS = (
    _tool("list_files", "List the files below a folder.", folder="Path from the repository's root."),
    _tool("read_file", "Return the whole text of a file.", path="Path from the repository's root."),
    _tool("search", "Return each line that holds a text.", text="What to look for.", folder="Where to look."),
    _tool("write_file", "Replace the text of a file.", path="Path of the file.", text="Its new text."),
    _tool("run", "Run a command in the repository and return what it printed.", command="The command."),
)


@frozen(kw_only=True)
class Shape:
    """A form of a long prompt: `fields` turns its text into the fields of a chat request."""

    name: str
    fields: Callable[[str], Mapping[str, Any]]


def _agent(text: str) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [*_opening(text)]
    for number, part in enumerate(parts(text, ROUNDS)):
        call = {
            "id": f"call{number:05d}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": f"import/part{number}.txt"})},
        }
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": part},
        ]
    return {"messages": messages + _closing(), "tools": list(_TOOLS)}


def _conversation(text: str) -> dict[str, Any]:
    messages = _opening(text)
    for number, part in enumerate(parts(text, ROUNDS)):
        messages += [
            {"role": "assistant", "content": f"Show me part {number} of the import."},
            {"role": "user", "content": part},
        ]
    return {"messages": messages + _closing()}


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{text}\n\n{_QUESTION}"}]}


def _opening(text: str) -> list[dict[str, Any]]:
    """The nonce that `text` begins with comes first of all, so that no cache knows any of it."""
    nonce = text.partition("]")[0] + "]"
    return [
        {"role": "system", "content": f"{nonce} {_SYSTEM}"},
        {"role": "user", "content": _TASK},
    ]


def _closing() -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": _READ}, {"role": "user", "content": _QUESTION}]


SHAPES: Sequence[Shape] = (
    Shape(name="an agent's prompt with tools and their results", fields=_agent),
    Shape(name="a system prompt and a conversation", fields=_conversation),
    Shape(name="one message", fields=_message),
)
"""The first is what an agent sends; the others are for servers that refuse it."""


def parts(text: str, count: int) -> list[str]:
    """Cut `text` into `count` parts of about the same length, between its words; none is empty as long
    as there are words enough."""
    found, at = [], 0
    for number in range(1, count):
        end = text.find(" ", max(len(text) * number // count, at + 1))
        end = len(text) if end < 0 else end
        found.append(text[at:end])
        at = end
    return [part.strip() or "(empty)" for part in [*found, text[at:]]]
