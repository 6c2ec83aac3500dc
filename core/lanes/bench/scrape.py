"""The server's own metrics, in the text format of Prometheus, read before, after and seldom during a pass."""

from __future__ import annotations

import re
import statistics
import threading
from collections.abc import Mapping
from typing import Any

from lanes.bench.http import api_key
from lanes.types import Endpoint

EVERY_S = 2.0
"""Between two looks during a pass: some servers answer between two steps of the model."""
_TIMEOUT_S = 2.0
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)

_SUMMED = {"running", "queued", "generated", "accepted", "drafts"}
"""Over the ranks and replicas that a server lists one by one; of the others the mean is taken."""
_COUNTERS = {"generated", "accepted", "drafts"}


def read(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the values of the metrics that `names` maps our names to, as far as `text` has them.

    A counter may be listed with the suffix `_total` that the format gives it.
    """
    wanted = {theirs: ours for ours, theirs in names.items()}
    wanted |= {f"{theirs}_total": ours for ours, theirs in names.items()}
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        if name in wanted:
            try:
                number = float(value)
            except ValueError:
                continue
            if number == number:  # some servers say NaN until they know
                found.setdefault(wanted[name], []).append(number)
    return {
        ours: sum(values) if ours in _SUMMED else statistics.fmean(values) for ours, values in found.items()
    }


class Scraper:
    """Reads the metrics that the endpoint's dialect names; does nothing where it names none.

    `running`, `queued` (requests), `kv_use` (a share) and `acceptance` (tokens a verify step) are gauges.
    `generated` (tokens), `accepted` (drafted tokens that were) and `drafts` (verify steps) are counters,
    of which the growth during the pass is taken.
    """

    def __init__(self, endpoint: Endpoint, every_s: float = EVERY_S) -> None:
        dialect = endpoint.dialect
        self._url = f"{endpoint.url}{dialect.metrics_path}" if dialect.metrics_path else None
        self._names = dialect.metrics
        self._key_env = dialect.api_key_env
        self._every_s = every_s
        self._client: Any = None
        self._before: dict[str, float] = {}
        self._samples: list[dict[str, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.works = bool(self._url and self._names)

    def begin(self) -> None:
        """Read once, then now and then on a thread of its own."""
        if not self.works:
            return
        self._halt()
        before = self._read()
        if before is None:
            self.works = False  # a server without metrics is not asked again
            return
        self._before, self._samples = before, []
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, float]:
        """Read once more and return the figures of the pass."""
        if not self.works or self._thread is None:
            return {}
        self._halt()
        after = self._read()
        samples = self._samples + ([after] if after and not self._samples else [])
        figures: dict[str, float] = {}
        for name in ("running", "queued", "kv_use"):
            values = [one[name] for one in samples if name in one]
            if values:
                figures[f"{name}_max"] = max(values)
        # A server that has not speculated lately says 0.
        told = [one["acceptance"] for one in samples if one.get("acceptance", 0) > 0]
        if told:
            figures["acceptance"] = statistics.fmean(told)
        grown = {
            name: after[name] - self._before[name]
            for name in _COUNTERS
            if after and name in after and name in self._before and after[name] >= self._before[name]
        }
        if "generated" in grown:
            figures["generated_tokens"] = grown["generated"]
        if grown.get("drafts", 0) > 0 and "accepted" in grown:
            # A step gives the accepted tokens and the one that the model adds itself.
            figures["acceptance"] = 1 + grown["accepted"] / grown["drafts"]
        return figures

    def stop(self) -> None:
        self._halt()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _halt(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _sample(self) -> None:
        # The first look is early, so that a short pass has one.
        wait_s = self._every_s / 4
        while not self._stop.wait(wait_s):
            if (found := self._read()) is not None:
                self._samples.append(found)
            wait_s = self._every_s

    def _read(self) -> dict[str, float] | None:
        import httpx2

        try:
            if self._client is None:
                key = api_key(self._key_env)
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                self._client = httpx2.Client(trust_env=False, timeout=_TIMEOUT_S, headers=headers)
            answer = self._client.get(self._url)
            return read(answer.text, self._names) if answer.status_code == 200 else None
        except httpx2.HTTPError:
            return None
