"""One streamed answer as it was seen: the raw timeline, from which every figure can be recomputed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from attrs import field, frozen

from lanes.bench.arrivals import Arrivals, as_columns
from lanes.bench.deltas import Usage


@frozen(kw_only=True)
class Stream:
    """One request and its streamed answer.

    `t0_ns` is CLOCK_REALTIME just before the first byte of the request was written, on a connection
    that was already open; opening it took `connect_s` (TCP only: about one round trip).
    `stamps` says where the times come from: `kernel` (when the bytes reached this machine), `read`
    (when this program read them), or `mixed`. `read_lag_s` is the median delay of this program's
    reads behind the kernel's stamps. `merged_reads` counts reads that held several token-bearing
    deltas, which then share one stamp. `clock_step_ns` is how far the system's clock was moved
    during the request, 0 when it ran evenly. `doubt_s` is by how much the first or the last token's
    time may be late: a read that held it and other events has the last one's stamp, and was so late.

    `odd` says what in the stream may have been tokens in a form that is not known.
    `failure` is None, or the kind of failure: `connect`, `status` (HTTP), `server` (an error in
    the stream), `cut`, `stall`, `protocol`; `error` is then one sentence.
    `server_account` is the server's own account of its times, where the stream held one.
    """

    t0_ns: int
    connect_s: float = 0.0
    arrivals: Arrivals = field(factory=Arrivals, converter=as_columns)
    stamps: str = "read"
    read_lag_s: float | None = None
    merged_reads: int = 0
    clock_step_ns: int = 0
    doubt_s: float = 0.0
    first_text: str = ""
    text: str = ""
    usage: Usage | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    status: int | None = None
    failure: str | None = None
    error: str | None = None
    odd: str | None = None
    server_account: Mapping[str, float] | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    @cached_property
    def token_arrivals(self) -> Arrivals:
        """The arrivals that carried tokens."""
        return self.arrivals.with_tokens()

    @property
    def completion_tokens(self) -> int | None:
        return self.usage.completion_tokens if self.usage else None

    @property
    def prompt_tokens(self) -> int | None:
        return self.usage.prompt_tokens if self.usage else None

    @property
    def cached_tokens(self) -> int | None:
        return self.usage.cached_tokens if self.usage else None
