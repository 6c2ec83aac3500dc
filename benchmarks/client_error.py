"""Hold the client, llama-benchy and aiperf against a server that knows what it sent.

    python benchmarks/client_error.py [--benchy PATH] [--aiperf PATH] [--repeats 3] [--all-habits]

First the client alone, with all habits of real servers that leave timing unchanged, at 1, 16, 64
and 256 streams: TTFT within 1 ms + 0.5% and decode within 0.5% of what the server did (median of each
cell), and one TTFT in a hundred less than 10 ms off at 64 and 256. `--all-habits` tries each
combination in each cell (about half an hour), else a few hundred of them.

Then the same bursts with each program, as a person runs it, at 64 and 256 streams. PATH is the
program, from `pip install llama-benchy` and `pip install aiperf`; what is not given is left out. The
error is the median difference between the times that a program says and those of the server's own
account, both in order of size, as the programs do not say which request was which. TTFT is, on the server's
side, from the arrival of the request to the first token-bearing write. The CPU time is that of the
program and its children, less that of a run with four tokens instead of many, for each event. The start-up that is so taken off varies by a
tenth of a second: at 64 streams `--tokens 1024` tells it closely, the default within 3 µs an event.

Goals: the error at most a quarter of the better of the two others; CPU time at most a quarter of
llama-benchy's and a fifth of aiperf's. Exits with 1 when one is missed. Shown too, and no goals:
llama-benchy with --emit-progress, as it then keeps the time of each event like `lanes bench`; the client
without what makes figures of its streams; and a loop that reads each event, and does nothing with it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.server
import itertools
import json
import math
import os
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import frozen
from lanes.bench import measures
from lanes.bench.calibration.calibrate import CONCURRENCY, Bench, Load
from lanes.bench.calibration.habits import COMBINATIONS
from lanes.bench.calibration.metronome import Metronome, Sent
from lanes.bench.client import CHAT_PATH, Client
from lanes.bench.http import Target, request_bytes
from lanes.bench.prose import words
from lanes.bench.requests import Form
from lanes.bench.stream import Stream
from lanes.bench.transport import ask_for_stamps
from lanes.testing.scripts import Script
from lanes.types import Endpoint

PROMPT = 128
TTFT_S, GAP_S = 0.2, 0.01
TINY = 4
BURSTS = 2


@frozen(kw_only=True)
class Said:
    """What a program said of its streams, in seconds and tokens per second, and the CPU time it took."""

    ttft_s: Sequence[float]
    decode_tps: Sequence[float]
    cpu_s: float


@frozen(kw_only=True)
class Outcome:
    ttft_s: float
    decode: float
    cpu_us: float


class Programs:
    """The programs, each run in `folder`, where it finds a book and a tokenizer without any network."""

    def __init__(self, folder: Path, benchy: str | None, aiperf: str | None) -> None:
        self._folder, self._benchy, self._aiperf = folder, benchy, aiperf
        self._tokenizer = folder / "tokenizer"
        book = "".join(itertools.islice(words("book"), 60_000))
        (folder / "book.txt").write_text(book)
        write_tokenizer(self._tokenizer, book)
        handler = functools.partial(Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._book_url = f"http://127.0.0.1:{server.server_port}/book.txt"

    @property
    def all(self) -> dict[str, Callable[[str, int, int], Said]]:
        found: dict[str, Callable[[str, int, int], Said]] = {
            "lanes bench": self.lanes,
            "the client alone": self.client,
            "a loop that reads": self.loop,
        }
        if self._benchy:
            found["llama-benchy"] = self.benchy
            found["llama-benchy --emit-progress"] = functools.partial(self.benchy, progress=True)
        if self._aiperf:
            found["aiperf"] = self.aiperf
        return found

    def lanes(self, url: str, streams: int, tokens: int) -> Said:
        program = [sys.executable, "-m", "lanes"]
        argv = [*program, "bench", "--url", url, "--pp", str(PROMPT), "--tg", str(tokens)]
        argv += ["--concurrency", str(streams), "--passes", str(BURSTS), "--warmups", "0"]
        cpu_s, output = self._run(argv)
        found = re.search(r"lanes history show (\S+)`", output)
        if found is None:
            raise SystemExit(f"lanes bench failed:\n{output}")
        _, text = self._run([*program, "history", "show", found[1], "--json"])
        (lane,) = json.loads(text[text.index("{") :])["lanes"]
        (cell,) = lane["instruments"][0]["cells"]
        figures = [one for p in cell["passes"] for one in p["stream_figures"]]
        return Said(
            ttft_s=[one["ttft_s"] for one in figures],
            decode_tps=[one["decode_tps"] for one in figures],
            cpu_s=cpu_s,
        )

    def client(self, url: str, streams: int, tokens: int) -> Said:
        cpu_s, output = self._run([sys.executable, __file__, "--client", url, str(streams), str(tokens)])
        return Said(**json.loads(output), cpu_s=cpu_s)

    def loop(self, url: str, streams: int, tokens: int) -> Said:
        cpu_s, _ = self._run([sys.executable, __file__, "--loop", url, str(streams), str(tokens)])
        return Said(ttft_s=(), decode_tps=(), cpu_s=cpu_s)

    def benchy(self, url: str, streams: int, tokens: int, progress: bool = False) -> Said:
        result = self._folder / "benchy.json"
        argv = [self._benchy or "", "--base-url", f"{url}/v1", "--model", "metronome"]
        argv += ["--served-model-name", "metronome", "--tokenizer", str(self._tokenizer)]
        argv += ["--book-url", self._book_url, "--pp", str(PROMPT), "--tg", str(tokens), "--exact-tg"]
        argv += ["--concurrency", str(streams), "--runs", str(BURSTS), "--latency-mode", "none"]
        argv += ["--no-warmup", "--skip-coherence", "--no-adapt-prompt"]
        argv += ["--extra-body", "temperature=0,seed=42", "--format", "json", "--save-result", str(result)]
        argv += ["--emit-progress", str(self._folder / "progress.json")] if progress else []
        cpu_s, output = self._run(argv)
        try:
            (row,) = json.loads(result.read_text())["benchmarks"]
        except (OSError, ValueError):
            raise SystemExit(f"llama-benchy failed:\n{output}") from None
        return Said(
            ttft_s=[ms / 1e3 for ms in row["e2e_ttft"]["values"]],
            decode_tps=row["tg_req_throughput"]["values"],
            cpu_s=cpu_s,
        )

    def aiperf(self, url: str, streams: int, tokens: int) -> Said:
        result = self._folder / "aiperf"
        argv = [self._aiperf or "", "profile", "-m", "metronome", "--url", url, "--endpoint-type", "chat"]
        argv += ["--streaming", "--tokenizer", str(self._tokenizer), "--use-server-token-count"]
        argv += ["--concurrency", str(streams), "--request-count", str(streams * BURSTS)]
        argv += ["--num-dataset-entries", str(streams), "--prompt-input-tokens-mean", str(PROMPT)]
        argv += ["--prompt-input-tokens-stddev", "0", "--prompt-output-tokens-mean", str(tokens)]
        argv += ["--prompt-output-tokens-stddev", "0", "--extra-inputs", "ignore_eos:true"]
        argv += ["--output-artifact-dir", str(result), "--ui", "none", "--no-auto-plot"]
        argv += ["--no-gpu-telemetry", "--no-server-metrics"]
        cpu_s, output = self._run(argv)
        try:
            lines = (result / "profile_export.jsonl").read_text().splitlines()
        except OSError:
            raise SystemExit(f"aiperf failed:\n{output}") from None
        metrics = [json.loads(line)["metrics"] for line in lines]
        return Said(
            ttft_s=[m["time_to_first_token"]["value"] / 1e3 for m in metrics],
            # Of a few tokens at once there is no rate.
            decode_tps=[1e3 / (m["inter_token_latency"]["value"] or math.inf) for m in metrics],
            cpu_s=cpu_s,
        )

    def _run(self, argv: Sequence[str]) -> tuple[float, str]:
        """Run a program to its end; return its CPU time, its children's included, and what it printed."""
        # Without this, a program would ask a hub about the tokenizer's folder first.
        env = {**os.environ, "HOME": str(self._folder), "LANES_HOME": str(self._folder / "lanes")}
        env.pop("HF_HUB_OFFLINE", None)
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(argv, env=env, cwd=self._folder, stdout=output, stderr=output)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            return usage.ru_utime + usage.ru_stime, output.read().decode("utf-8", "replace")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


async def only_client(url: str, streams: int, tokens: int) -> None:
    """Send the bursts with the client; print what it saw."""
    endpoint = Endpoint(url=url, model="metronome")
    client, form = Client(endpoint), Form(endpoint=endpoint, seed=1)
    seen: list[Stream] = []
    for _ in range(BURSTS):
        connections = [await client.open() for _ in range(streams)]
        body = form.body("Go on. " * PROMPT, tokens)
        seen += await asyncio.gather(*(client.chat(body, connection) for connection in connections))
    rates = [measures.decode_tps(one, measures.first_delta(one)) for one in seen]
    print(json.dumps({"ttft_s": [measures.ttft_s(one) for one in seen], "decode_tps": rates}))


def only_loop(url: str, streams: int, tokens: int) -> None:
    """Send the bursts and read each event as it comes, with its stamp, and nothing more."""
    endpoint = Endpoint(url=url, model="metronome")
    target = Target.of(endpoint)
    payload = request_bytes(
        target, CHAT_PATH, Form(endpoint=endpoint, seed=1).body("Go on. " * PROMPT, tokens)
    )
    for _ in range(BURSTS):
        poll = select.epoll()
        sockets = {}
        for _ in range(streams):
            sock = socket.create_connection((target.host, target.port))
            ask_for_stamps(sock)
            if hasattr(socket, "TCP_QUICKACK"):  # as the client does for many streams
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            sockets[sock.fileno()] = sock
            poll.register(sock.fileno(), select.EPOLLIN)
        for sock in sockets.values():
            sock.sendall(payload)
        while sockets:
            for fd, _ in poll.poll(1):
                if sockets[fd].recvmsg(65536, 64)[0].endswith(b"0\r\n\r\n"):
                    poll.unregister(fd)
                    sockets.pop(fd).close()
            time.sleep(0.002)


def write_tokenizer(folder: Path, text: str) -> None:
    """Write a tokenizer of whole words, for programs that insist on one."""
    folder.mkdir()
    vocabulary = {"[UNK]": 0}
    for word in re.findall(r"\w+|[^\w\s]+", text):
        vocabulary.setdefault(word, len(vocabulary))
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    parts = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    split = {"type": "Whitespace"}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        **parts,
        "pre_tokenizer": split,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def outcome(program: Callable[[str, int, int], Said], url: str, truth: Callable[[], list[Sent]],
            streams: int, tokens: int) -> Outcome:  # fmt: skip
    """Run a program with few tokens and with many; return its error, and what an event more costs it."""
    truth()
    few = program(url, streams, TINY)
    few_events = sum(len(sent.at_ns) for sent in truth())
    many = program(url, streams, tokens)
    sent = [one for one in truth() if sum(one.tokens) == tokens]
    events = sum(len(one.at_ns) for one in sent)
    return Outcome(
        ttft_s=difference(many.ttft_s, [(s.at_ns[0] - s.got_ns) / 1e9 for s in sent]),
        decode=difference(many.decode_tps, [s.decode_tps or 0.0 for s in sent], relative=True),
        cpu_us=(many.cpu_s - few.cpu_s) / (events - few_events) * 1e6,
    )


def difference(said: Sequence[float], true: Sequence[float], relative: bool = False) -> float:
    """The median difference of two lists of the same things in unknown order."""
    if not said:
        return math.nan
    if len(said) != len(true):
        raise SystemExit(f"a program tells of {len(said)} streams, and the server of {len(true)}")
    pairs = zip(sorted(said), sorted(true), strict=True)
    return statistics.median(abs(a / b - 1) if relative else abs(a - b) for a, b in pairs)


def habits(every: bool) -> bool:
    """Print the client's error with all habits; return whether a goal was missed."""
    print("| streams | n | TTFT off, median | p99 | decode off, median | server late, p99 | goals |")
    print("|---|---|---|---|---|---|---|")
    missed = False
    with Metronome() as metronome:
        bench = Bench(metronome)
        for streams in CONCURRENCY:
            bursts = math.ceil((COMBINATIONS if every else max(64, 4 * streams)) / streams)
            load = Load(tokens=48, passes=bursts)
            if streams == 1:
                load = Load(tokens=24, ttft_s=0.03, gap_s=0.003, passes=bursts)
            cell = asyncio.run(bench.cell(streams, load))
            missed |= cell.missed is not None
            print(
                f"| {streams} | {cell.streams} | {cell.ttft_s * 1e3:.3f} ms | {cell.ttft_p99_s * 1e3:.3f} ms"
                f" | {cell.decode:.4%} | {cell.late_s * 1e3:.2f} ms | {cell.missed or 'met'} |",
                flush=True,
            )
    return missed


def side_by_side(programs: Programs, streams: int, tokens: int, repeats: int) -> bool:
    """Print the programs' error and cost; return whether a goal was missed."""
    seen: dict[str, list[Outcome]] = {name: [] for name in programs.all}
    with Metronome(Script(ttft_s=TTFT_S, gap_s=GAP_S)) as metronome:
        for _ in range(repeats):
            for name, program in programs.all.items():
                seen[name].append(outcome(program, metronome.url, metronome.truth, streams, tokens))
    median = {
        name: Outcome(
            ttft_s=statistics.median(o.ttft_s for o in outcomes),
            decode=statistics.median(o.decode for o in outcomes),
            cpu_us=statistics.median(o.cpu_us for o in outcomes),
        )
        for name, outcomes in seen.items()
    }
    for name, one in median.items():
        if math.isnan(one.ttft_s):
            print(f"| {streams} | {name} | | | {one.cpu_us:.1f} µs |")
            continue
        print(f"| {streams} | {name} | {one.ttft_s * 1e3:.3f} ms | {one.decode:.4%} | {one.cpu_us:.1f} µs |")
    ours = median["lanes bench"]
    others = {name: median[name] for name in ("llama-benchy", "aiperf") if name in median}
    if not others:
        return False
    goals = {
        "TTFT": (ours.ttft_s, min(o.ttft_s for o in others.values()) / 4),
        "decode": (ours.decode, min(o.decode for o in others.values()) / 4),
        **{
            f"CPU time beside {name}": (ours.cpu_us, o.cpu_us / (4 if name == "llama-benchy" else 5))
            for name, o in others.items()
        },
    }
    missed = [
        f"{name} ({mine / goal:.2f} times the goal)" for name, (mine, goal) in goals.items() if mine > goal
    ]
    print(f"| {streams} | goals missed: {', '.join(missed) or 'none'} | | | |", flush=True)
    return bool(missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--benchy", help="the llama-benchy program")
    parser.add_argument("--aiperf", help="the aiperf program")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[64, 256])
    parser.add_argument("--all-habits", action="store_true", help="each combination of habits in each cell")
    parser.add_argument("--no-habits", action="store_true", help="only the programs side by side")
    for only in ("--client", "--loop"):
        parser.add_argument(only, nargs=3, metavar=("URL", "STREAMS", "TOKENS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        asyncio.run(only_client(given.client[0], *map(int, given.client[1:])))
        return 0
    if given.loop:
        only_loop(given.loop[0], *map(int, given.loop[1:]))
        return 0
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before the start\n")
    missed = False if given.no_habits else habits(given.all_habits)
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder), given.benchy, given.aiperf)
        print("\n| streams | program | TTFT off | decode off | CPU an event |")
        print("|---|---|---|---|---|")
        for streams in given.concurrency:
            missed |= side_by_side(programs, streams, given.tokens, given.repeats)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
