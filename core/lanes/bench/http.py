"""HTTP/1.1 as far as the benchmark needs it: one request, one response, on one connection."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools
from attrs import field, frozen

from lanes.errors import UsageError
from lanes.types import Endpoint


@frozen(kw_only=True)
class Target:
    """Where requests go. The key is never shown: not in a repr, not in an error."""

    host: str
    port: int
    tls: bool
    path: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, endpoint: Endpoint) -> Target:
        """Return the target of `endpoint`, with the key from the variable that its dialect names.

        Raises UsageError when the URL is not one, or when the variable is not set or cannot be sent.
        """
        parts = urlsplit(endpoint.url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise UsageError(
                f"{endpoint.url!r} is not the URL of a server", "Write it like http://127.0.0.1:8000"
            )
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port or (443 if tls else 80),
            tls=tls,
            path=parts.path.rstrip("/"),
            key=api_key(endpoint.dialect.api_key_env),
        )

    @property
    def name(self) -> str:
        """`host:port`, for sentences and the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def redact(self, text: str) -> str:
        """Return `text` without the key, which some servers repeat in their errors."""
        return text.replace(self.key, "***") if self.key else text


def api_key(variable: str | None) -> str | None:
    """Return the API key held by an environment variable; None when none is named.

    Raises UsageError when the variable is not set, or holds what no header can carry.
    """
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(
            f"the environment variable {variable}, which should hold the API key, is not set",
            f"Set it with: export {variable}=...",
        )
    if not key.isascii() or not key.isprintable():
        raise UsageError(f"the environment variable {variable} holds characters that no API key has")
    return key


def request_bytes(target: Target, path: str, body: Mapping[str, Any]) -> bytes:
    """Return a POST of `body` as JSON, ready to be written. `path` starts with a slash."""
    content = json.dumps(body, separators=(",", ":")).encode()
    lines = [
        f"POST {target.path}{path} HTTP/1.1",
        f"Host: {target.name}",
        "Content-Type: application/json",
        "Accept: text/event-stream, application/json",
        "Accept-Encoding: identity",
        "User-Agent: lanes",
        f"Content-Length: {len(content)}",
    ]
    if target.key:
        lines.append(f"Authorization: Bearer {target.key}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content


class NotHttp(ValueError):
    """Bytes that are not HTTP; `body` is the part of the body that came before them."""

    def __init__(self, message: str, body: bytes) -> None:
        super().__init__(message)
        self.body = body


class ResponseReader:
    """Read one response: chunked, of a given length, or up to the end of the connection.

    `status` is 0 until the headers are complete; header names are in lower case. What follows the
    response on the connection is none of it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._body: list[bytes] = []
        self._between_chunks = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the part of the body in them.

        Raises NotHttp, a ValueError, when they are not HTTP.
        """
        reason: str | None = None
        if self._parser is not None and not self.complete:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                reason = "the server asked to change the protocol"
            except httptools.HttpParserError as error:
                reason = f"the server's answer is not HTTP ({error})"
        body = b"".join(self._body)
        self._body.clear()
        if reason and not self.complete:
            raise NotHttp(reason, body)
        return body

    def close(self) -> None:
        """Read no more. The parser and this object refer to each other: thousands of such circles would wait
        for the garbage collector."""
        self._parser = None

    @property
    def ends_with_connection(self) -> bool:
        """Whether only the end of the connection ends the body."""
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        return bool(self.status) and not chunked and "content-length" not in self.headers

    @property
    def open_ended(self) -> bool:
        """Whether more of the body comes, of a length that nobody told: in a new chunk where it is chunked."""
        return self.ends_with_connection or (self._between_chunks and not self.complete)

    # httptools calls these.

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # later ones are trailers
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self.complete or self._parser is None:
            return
        status = self._parser.get_status_code()
        if status < 200:  # interim answers come before the real one
            self.headers.clear()
        else:
            self.status = status

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
