"""Tools: who decides whether one is called, and what a call looks like."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lanes.instruments.asking import Exchange, Message
from lanes.instruments.surface.checks import (
    Found,
    Server,
    broken,
    ignored,
    quoted,
    supported,
    unknown,
)

_CITIES = ["Paris", "Rome", "Oslo"]
_MOST = 64


def _tool(name: str, description: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": _CITIES}},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [_tool("get_weather", "The weather in a city, now."), _tool("get_time", "The time of day in a city.")]
_NAMES = ("get_weather", "get_time")
_ASKED = "What is the weather in Paris now? Call get_weather to find out."


def auto(server: Server) -> Found:
    one = server.good(server.chat(_ASKED, tools=TOOLS, tool_choice="auto", max_tokens=_MOST))
    said = one.message
    if said.tool_calls:
        return _calls(said) or supported()
    if re.search(r'<\|?tool_call|<function=|"name"\s*:\s*"get_weather"', said.content):
        return broken(f"the call came as text, not as a tool call: {quoted(said.content)}")
    return ignored(unread) if (unread := _unread(server, one)) else unknown("the model called no tool")


def none(server: Server) -> Found:
    said = server.answered(_ASKED, tools=TOOLS, tool_choice="none", max_tokens=32)
    if said.tool_calls:
        return broken(f"it calls {_name(said.tool_calls[0])} although calls were ruled out")
    return supported()


def required(server: Server) -> Found:
    return _must_call(server, server.chat(_ASKED, tools=TOOLS, tool_choice="required", max_tokens=_MOST))


def named(server: Server) -> Found:
    """The tool that is named is not the one that the question asks for."""
    choice = {"type": "function", "function": {"name": "get_time"}}
    one = server.chat(_ASKED, tools=TOOLS, tool_choice=choice, max_tokens=_MOST)
    found = _must_call(server, one)
    if found.status == "supported" and (name := _name(one.message.tool_calls[0])) != "get_time":
        return broken(f"get_time was to be called, and it calls {name}")
    return found


def parallel(server: Server) -> Found:
    one = server.chat(
        "What is the weather in Paris, and what is it in Rome? Call get_weather for both.",
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=True,
        max_tokens=2 * _MOST,
    )
    found = _must_call(server, one)
    if found.status != "supported":
        return found
    calls = one.message.tool_calls
    if len(calls) < 2:
        return unknown("the model made one call")
    return broken("two calls have one id") if len({c.get("id") for c in calls}) < len(calls) else supported()


def streamed(server: Server) -> Found:
    return _must_call(
        server,
        server.chat(
            _ASKED,
            tools=TOOLS,
            tool_choice="required",
            max_tokens=_MOST,
            stream=True,
            stream_options={"include_usage": True},
        ),
    )


def history(server: Server) -> Found:
    """A call that was made and answered, and what the model says to it."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Paris"})},
    }
    messages = [
        {"role": "user", "content": _ASKED},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Rain, 17 degrees."},
    ]
    said = server.answered(messages=messages, tools=TOOLS, max_tokens=32)
    if not (said.content or said.reasoning or said.tool_calls):
        return broken("the answer is empty")
    return supported()


def _must_call(server: Server, one: Exchange) -> Found:
    said = server.good(one).message
    if said.tool_calls:
        return _calls(said) or supported()
    if unread := _unread(server, one):
        return broken(f"a call was required, and none came: {unread}")
    if said.finish_reason == "length" and not said.content.strip():
        return unknown("the answer was cut before any call")
    return broken(f"a call was required, and none came: {quoted(said.content)}")


def _unread(server: Server, one: Exchange) -> str | None:
    """Says so where the prompt has no more tokens with the tools than without them: nobody read them."""
    counted = one.usage.prompt_tokens if one.usage else None
    without = server.good(server.chat(messages=one.sent["messages"], max_tokens=1)).usage
    if counted is None or without is None or without.prompt_tokens is None:
        return None
    if counted > without.prompt_tokens:
        return None
    return f"the prompt has {counted} tokens with the tools as without: nobody read them"


def _calls(said: Message) -> Found | None:
    """What is wrong with the calls of a message, or could not be told."""
    for call in said.tool_calls:
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, arguments = function.get("name"), function.get("arguments")
        if name not in _NAMES:
            return broken(f"it calls {name!r}, which is no tool that it was given")
        if not isinstance(arguments, str):
            return broken(f"the arguments are {type(arguments).__name__}, not JSON in a string")
        try:
            value = json.loads(arguments)
        except ValueError:
            if said.finish_reason == "length":
                return unknown("the arguments were cut before their end")
            return broken(f"the arguments are not JSON: {quoted(arguments)}")
        if not isinstance(value, dict) or value.get("city") not in _CITIES:
            return broken(f"the arguments are not as the tool wants them: {quoted(arguments)}")
        if not call.get("id"):
            return broken("the call has no id, so no answer can name it")
    return None


def _name(call: Mapping[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, Mapping) else None
