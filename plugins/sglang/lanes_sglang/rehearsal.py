"""What can be tried of SGLang in minutes: its parser, a kernel of its own, and the lane with dummy weights."""

from __future__ import annotations

import re
import sys
from pathlib import PurePath

import attrs
from lanes.types import Lane, Launch, Process, Rehearsal, Trial

from lanes_sglang import arguments, installed
from lanes_sglang.options import SglangOptions

CONTEXT = 4096
"""Tokens of context that a rehearsal does with."""

_PYTHON = re.compile(r"python[\d.]*")

_CANNOT = "    print(f'its parser cannot be asked: {error}'); raise SystemExit(69)"
_FLAGS = f"""
import argparse
import sys
try:
    from sglang.srt.server_args import ServerArgs
    parser = argparse.ArgumentParser(prog='sglang serve')
    ServerArgs.add_cli_args(parser)
except (ImportError, AttributeError) as error:
{_CANNOT}
parser.parse_args(sys.argv[1:])
print('the flags are understood')
"""
"""SGLang's own parser, without what it derives from the model and the GPU."""

_KERNELS = """
try:
    import torch
    import sgl_kernel
except ModuleNotFoundError as error:
    print(f'its kernels cannot be tried: {error}'); raise SystemExit(69)
if not hasattr(sgl_kernel, 'silu_and_mul'):
    print('its sgl_kernel has no silu_and_mul to try'); raise SystemExit(69)
x = torch.ones(8, 8192, dtype=torch.bfloat16, device='cuda')
got = sgl_kernel.silu_and_mul(x)
torch.cuda.synchronize()
assert got.shape == (8, 4096) and abs(got.float().mean().item() - 0.7311) < 0.01, 'silu of one is 0.7311'
print(f'sgl_kernel.silu_and_mul on {torch.cuda.get_device_name()}')
"""


def rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """The flags of each rank, a kernel of sgl_kernel, and the lane with weights that are made up: SGLang then reads
    the configuration and the tokenizer alone."""
    options = arguments.options_of(lane)
    words = len(options.command)
    if options.command[:2] != ("sglang", "serve") and "sglang.launch_server" not in options.command:
        unknown = f"the recipe starts it by a command of its own ({options.command[0]})"
        return Rehearsal(flags=unknown, kernels=unknown, dummy=_dummy(lane, options))
    return Rehearsal(
        flags=tuple(
            Trial(rank=one.rank, argv=(_python(options, one), "-c", _FLAGS, *one.argv[words:]))
            for one in launch.processes
        ),
        kernels=Trial(argv=(_python(options, launch.processes[0]), "-c", _KERNELS)),
        dummy=_dummy(lane, options),
    )


def _python(options: SglangOptions, process: Process) -> str:
    """The Python that has SGLang: that of the recipe's command, or of the image, or the one that runs us."""
    if _PYTHON.fullmatch(PurePath(options.command[0]).name):
        return options.command[0]
    beside = process.container is None and installed.version() is not None
    return sys.executable if beside else "python3"


def _dummy(lane: Lane, options: SglangOptions) -> Lane:
    """Without what is for reading weights, and in a small context."""
    context = options.context_length
    return attrs.evolve(
        lane,
        options=attrs.evolve(
            options,
            load_format="dummy",
            context_length=CONTEXT if context is None else min(context, CONTEXT),
            weight_loader_prefetch_checkpoints=False,
            weight_loader_disable_mmap=False,
            weight_loader_drop_cache_after_load=False,
            extra_args=_without(options.extra_args, ("--load-format", "--context-length")),
        ),
    )


def _without(words: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    """The words without these flags and their values: the dummy has its own."""
    left: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in flags:
            skip = True
        elif word.partition("=")[0] not in flags:
            left.append(word)
    return tuple(left)
