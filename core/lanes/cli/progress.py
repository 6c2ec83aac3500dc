"""What a person sees on stderr while it works: one line a finished phase, one that lives.

Quiet when stderr is not a terminal.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.status import Status


class Screen:
    """A journal's listener that draws. Use it as a context manager."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._shown = self._console.is_terminal
        self._status: Status | None = None
        self._name = self._phase = ""
        self._since = 0.0

    def __enter__(self) -> Screen:
        if self._shown:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "script":
            self._print(f"script {data['name']} runs on {data['where']}:")
            for line in data["text"].splitlines():
                self._print(f"  | {line}")
        elif kind == "warning":
            self._print(f"lanes: {data['text']}")
        if not self._shown or self._status is None:
            return
        if kind == "new-lane":
            self._name = data["name"]
        elif kind == "phase":
            self._finish()
            self._phase, self._since = data["phase"], time.monotonic()
            self._status.update(self._line(self._phase))
        elif kind == "progress":
            self._status.update(self._line(f"{self._phase}: {data['text']}"))
        elif kind == "pass":
            self._pass(data["measured"])
        elif kind == "lane-end":
            self._finish()
            mark = "[green]✓[/]" if data["status"] in ("measured", "serving", "rehearsed") else "[red]✗[/]"
            self._console.print(f"{mark} {_safe(self._name)}: {data['status']}")

    def _print(self, text: str) -> None:
        """Say it in any case, to a person or into a file."""
        self._console.print(_safe(text), soft_wrap=True)

    def _finish(self) -> None:
        """Leave a line for the phase that has ended, when it took long enough to be of interest."""
        taken = time.monotonic() - self._since
        if self._phase and taken >= 0.5:
            self._console.print(f"  [dim]{_safe(self._name)}: {self._phase}, {taken:.1f} s[/]")
        self._phase = ""

    def _pass(self, one: dict[str, Any]) -> None:
        what = "warm-up" if one["warmup"] else "pass"
        figures = one["figures"]
        said = one["error"] or ", ".join(
            f"{title} {figures[name]:,.1f}"
            for name, title in (
                ("ttft_s", "ttft s"),
                ("prefill_tps", "prefill tok/s"),
                ("decode_tps", "decode tok/s"),
                ("span_tps", "span tok/s"),
                ("load_tps", "load tok/s"),
                ("request_rps", "requests/s"),
            )
            if name in figures
        )
        self._console.print(f"  [dim]{what} {one['number']}: {_safe(said)}[/]")

    def _line(self, text: str) -> str:
        return f"{_safe(self._name)}: {_safe(text)}"


def _safe(text: str) -> str:
    """Text of others (recipes, logs) must not become markup, nor move the cursor."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else " " for c in text))
