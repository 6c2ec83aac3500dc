"""The shortest proof of life: a few tokens of a streamed answer."""

from __future__ import annotations

import asyncio

from lanes.bench.client import Client
from lanes.bench.plan import Limits
from lanes.bench.requests import Form
from lanes.bench.stream import Stream
from lanes.errors import LaneError
from lanes.types import Endpoint


def smoke(endpoint: Endpoint, max_tokens: int = 8, limits: Limits | None = None) -> Stream:
    """Ask `endpoint` for a few tokens and return the stream; its `text` holds what came.

    Raises LaneError, with one sentence, when the request failed or brought no token, and UsageError
    when the endpoint's URL or API key is wrong.
    """
    stream = asyncio.run(_ask(endpoint, max_tokens, limits or Limits()))
    if stream.error:
        raise LaneError(stream.error)
    if not stream.token_arrivals:
        raise LaneError(f"the server answered without any token (it ended with {stream.finish_reason})")
    return stream


async def _ask(endpoint: Endpoint, max_tokens: int, limits: Limits) -> Stream:
    client = Client(endpoint, limits)
    form = Form(endpoint=endpoint, seed=0, plain=True)
    return await client.chat(form.body("Name three colours of the rainbow.", max_tokens))
