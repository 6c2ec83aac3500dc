"""What the server really does with each thing that clients ask for, one by one, with request and answer kept."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from lanes.instruments.asking import Asker, Exchange
from lanes.instruments.base import Context, Instrument, Measured, Row
from lanes.instruments.surface import addresses, chat, manners, thinking, tools
from lanes.instruments.surface.checks import Ended, Found, Server
from lanes.instruments.surface.leaving import cancel

CHECKS: tuple[tuple[str, Callable[[Server], Found]], ...] = (
    ("chat", chat.plain),
    ("streaming", chat.streaming),
    ("usage", chat.usage),
    ("usage in the stream", chat.usage_in_stream),
    ("usage in each chunk", chat.usage_per_chunk),
    ("stop", chat.stop),
    ("determinism at temperature 0", chat.determinism),
    ("seed", chat.seed),
    ("logprobs", chat.logprobs),
    ("n", chat.several),
    ("response_format json_object", chat.json_object),
    ("response_format json_schema", chat.json_schema),
    ("tool_choice auto", tools.auto),
    ("tool_choice none", tools.none),
    ("tool_choice required", tools.required),
    ("tool_choice by name", tools.named),
    ("parallel tool calls", tools.parallel),
    ("tool calls in the stream", tools.streamed),
    ("tool results in the history", tools.history),
    ("reasoning", thinking.fields),
    ("thinking on and off", thinking.switch),
    ("reasoning_effort", thinking.effort),
    ("long system prompt", chat.long_system),
    ("images", chat.images),
    ("unknown field", manners.unknown_field),
    ("temperature of a wrong type", manners.wrong_type("temperature", "hot")),
    ("max_tokens of a wrong type", manners.wrong_type("max_tokens", "many")),
    ("messages of a wrong type", manners.wrong_type("messages", "Hello")),
    ("a body that is no JSON", manners.no_json),
    ("/v1/models", addresses.models),
    ("every listed model name", addresses.every_name),
    ("unknown model name", manners.unknown_model),
    ("/tokenize", addresses.tokenizer),
    ("/metrics", addresses.metrics),
    ("context overflow", manners.overflow),
    ("cancel by disconnect", cancel),
)
"""In this order: what may hurt the server comes last."""

_STILL_S = 20.0
_STILL_TOKENS = 20
"""A short answer takes as long as so many tokens of a longer one: its prompt has to be read."""


@frozen(kw_only=True)
class Options:
    """`patience_s` is how long nothing may come before an answer counts as a hang; `context` the tokens of the
    server's context, where it does not tell."""

    patience_s: float = 60.0
    context: int | None = None


def run(context: Context) -> Measured:
    """Go through the checks; each is a row as it ends. A server that is lost ends it."""
    from lanes.bench.context import ask as ask_context

    options: Options = context.options or Options()
    context.began({"patience_s": options.patience_s, "checks": [name for name, _ in CHECKS]})
    kept: list[Exchange] = []
    asker = Asker(context.endpoint, options.patience_s, kept.append)
    try:
        server = Server(ask=asker, context=options.context or ask_context(context.endpoint).tokens)
        tokenizer = addresses.find_tokenizer(asker)
        if not isinstance(tokenizer, Found):
            server.text_tokens = tokenizer
        before = "its context"
        for number, (name, check) in enumerate(CHECKS):
            context.progress(name, number / len(CHECKS))
            kept.clear()
            found = _found(check, server)
            if kept and kept[0].trouble == "refused":
                # It was gone before: what came last is to blame.
                return Measured(status="crashed", reason=_gone(context, before, kept[0]))
            context.row(
                Row(
                    name=name,
                    status=found.status,
                    fault=found.status == "broken",
                    reason=found.reason,
                    evidence={"exchanges": [one.as_json() for one in kept]},
                )
            )
            if (lost := _lost(context, asker, kept, name)) is not None:
                return Measured(status="crashed", reason=lost)
            before = name
    finally:
        asker.close()
    return Measured()


def _found(check: Callable[[Server], Found], server: Server) -> Found:
    try:
        return check(server)
    except Ended as ended:
        return ended.found


def _lost(context: Context, asker: Asker, kept: list[Exchange], name: str) -> str | None:
    """How the server was lost by this check; None while it answers."""
    trouble = next((one for one in kept if one.trouble is not None), None)
    if trouble is None and context.alive() is None:
        return None
    after = asker.chat("Hello", max_tokens=2, patience_s=_STILL_S + asker.allowance_s(_STILL_TOKENS))
    return None if after.trouble is None else _gone(context, name, after)


def _gone(context: Context, name: str, one: Exchange) -> str:
    died = context.alive()
    return (
        f"{died} when asked for {name}" if died else f"it answers nothing since asked for {name}: {one.error}"
    )


INSTRUMENT = Instrument(
    name="surface",
    summary="what the server really does with each thing that clients ask for",
    cost="one or two minutes on a small model",
    options=Options,
    run=run,
)
