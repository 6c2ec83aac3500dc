"""`llama-server` for machines that have none: llama.cpp's own HTTP server, from PyPI's xllamacpp.

It takes the flags of `llama-server` that `lanes` uses. llama.cpp writes its log to stderr. While the
model loads, the port is open and answers 503.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_GPU_LAYERS = {"auto": -1, "all": -2}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return 1 when the model could not be served."""
    arguments = _parser().parse_args(argv)
    signals = {signal.SIGTERM, signal.SIGINT}
    # The constructor below holds Python's lock while the model loads, so that a handler could not run:
    # until it is done the signals keep the system's own action, which ends the process at once.
    for number in signals:
        signal.signal(number, signal.SIG_DFL)
    try:
        import xllamacpp
    except ImportError as error:
        return _refuse(
            f"xllamacpp cannot be imported ({error}): pip install xllamacpp, or install llama-server"
        )
    parameters = _parameters(xllamacpp, arguments)
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError:
        # What is wrong is in the lines that llama.cpp wrote above.
        return _refuse("llama.cpp did not start, its last lines say why")
    received = _wait_for(signals)
    print(f"lanes_llamacpp.server: stopping {server.listening_address} ({received})", file=sys.stderr)  # noqa: T201
    sys.stderr.flush()
    # The destructor would wait for every open connection. There is nothing to save, and the system
    # frees the rest.
    os._exit(0)


def _wait_for(signals: Iterable[signal.Signals]) -> str:
    """Wait for one of the signals; return its name."""
    # llama.cpp's own threads may be the ones that get the signal; the pipe wakes this one all the same.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return signal.Signals(os.read(reader, 1)[0]).name


def _refuse(message: str) -> int:
    print(f"lanes_llamacpp.server: {message}", file=sys.stderr)  # noqa: T201
    return 1


def check_flags(argv: Sequence[str]) -> None:
    """Read the command line and do no more. Raises SystemExit, with what is wrong on stderr."""
    _parser().parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lanes_llamacpp.server", description="Serve a GGUF with xllamacpp.", allow_abbrev=False
    )
    add = parser.add_argument
    add("-m", "--model", required=True, metavar="FILE", help="the GGUF, or the first file of a split one")
    add("--alias", metavar="NAME", help="the model's name in the API")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8080, help="port to listen on (default: %(default)s)")
    add(
        "-c", "--ctx-size", type=int, default=0, metavar="N", help="tokens of KV cache for all slots together"
    )
    add("-np", "--parallel", type=int, default=1, metavar="N", help="slots")
    add("-t", "--threads", type=int, metavar="N", help="CPU threads (default: llama.cpp's choice)")
    add(
        "-b", "--batch-size", type=int, default=2048, metavar="N", help="logical batch (default: %(default)s)"
    )
    add(
        "-ub",
        "--ubatch-size",
        type=int,
        default=512,
        metavar="N",
        help="physical batch (default: %(default)s)",
    )
    add("-ngl", "--gpu-layers", type=_gpu_layers, default=-1, metavar="N", help="a number, auto or all")
    add("-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto", help="(default: %(default)s)")
    add("-ctk", "--cache-type-k", default="f16", metavar="TYPE", help="(default: %(default)s)")
    add("-ctv", "--cache-type-v", default="f16", metavar="TYPE", help="(default: %(default)s)")
    add("--metrics", action="store_true", help="answer /metrics")
    add("--jinja", action="store_true", help="use the model's own chat template")
    return parser


def _gpu_layers(value: str) -> int:
    return _GPU_LAYERS[value] if value in _GPU_LAYERS else int(value)


def _parameters(xllamacpp: Any, arguments: argparse.Namespace) -> Any:
    flash = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[arguments.flash_attn]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = arguments.model
    if arguments.alias:
        parameters.model_alias = {arguments.alias}
    parameters.hostnames = [arguments.host]
    parameters.port = arguments.port
    parameters.n_ctx = arguments.ctx_size
    parameters.n_parallel = arguments.parallel
    if arguments.threads is not None:
        parameters.cpuparams.n_threads = arguments.threads
        parameters.cpuparams_batch.n_threads = arguments.threads
    parameters.n_batch = arguments.batch_size
    parameters.n_ubatch = arguments.ubatch_size
    parameters.n_gpu_layers = arguments.gpu_layers
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash}"]
    parameters.cache_type_k = xllamacpp.ggml_type[f"GGML_TYPE_{arguments.cache_type_k.upper()}"]
    parameters.cache_type_v = xllamacpp.ggml_type[f"GGML_TYPE_{arguments.cache_type_v.upper()}"]
    parameters.endpoint_metrics = arguments.metrics
    parameters.use_jinja = arguments.jinja
    return parameters


if __name__ == "__main__":
    sys.exit(main())
