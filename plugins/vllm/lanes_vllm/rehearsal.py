"""What can be tried of vLLM in minutes: its parser, a kernel of its own, and the lane with dummy weights."""

from __future__ import annotations

import sys

import attrs
from lanes.types import Lane, Launch, Process, Rehearsal, Trial

from lanes_vllm import arguments, installed
from lanes_vllm.options import VllmOptions

CONTEXT = 4096
"""Tokens of context that a rehearsal does with."""

_FLAGS = """
import sys
try:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    parser = make_arg_parser(FlexibleArgumentParser())
    if not any(one.dest == 'model_tag' for one in parser._actions):
        parser.add_argument('model_tag', nargs='?')
    if '--headless' not in parser._option_string_actions:
        parser.add_argument('--headless', action='store_true')
except (ImportError, AttributeError) as error:
    print(f'its parser cannot be asked: {error}'); raise SystemExit(69)
parser.parse_args(sys.argv[1:])
print('the flags are understood')
"""
"""vLLM's own parser. The model and --headless belong to `vllm serve`, which adds them in some versions."""

_KERNELS = """
try:
    import torch
    from vllm import _custom_ops
except ModuleNotFoundError as error:
    print(f'its kernels cannot be tried: {error}'); raise SystemExit(69)
if not hasattr(_custom_ops, 'rms_norm'):
    print('its _custom_ops have no rms_norm to try'); raise SystemExit(69)
x = torch.ones(8, 4096, dtype=torch.bfloat16, device='cuda')
got = torch.empty_like(x)
_custom_ops.rms_norm(got, x, torch.ones(4096, dtype=torch.bfloat16, device='cuda'), 1e-6)
torch.cuda.synchronize()
assert torch.allclose(got.float(), x.float(), atol=0.01), 'rms_norm of ones is not one'
print(f'vllm._custom_ops.rms_norm on {torch.cuda.get_device_name()}')
"""


def rehearsal(lane: Lane, launch: Launch) -> Rehearsal:
    """The flags of each rank, a kernel of vLLM's, and the lane with weights that are made up: vLLM then reads
    the configuration and the tokenizer alone."""
    options = arguments.options_of(lane)
    words = len(options.command)
    if options.command[:2] != ("vllm", "serve"):
        unknown = f"the recipe starts it by a command of its own ({options.command[0]})"
        return Rehearsal(flags=unknown, kernels=unknown, dummy=_dummy(lane, options))
    return Rehearsal(
        flags=tuple(
            Trial(rank=one.rank, argv=(_python(one), "-c", _FLAGS, *one.argv[words:]))
            for one in launch.processes
        ),
        kernels=Trial(argv=(_python(launch.processes[0]), "-c", _KERNELS)),
        dummy=_dummy(lane, options),
    )


def _python(process: Process) -> str:
    """The Python that has vLLM: that of the image, or the one that runs us."""
    beside = process.container is None and installed.version() is not None
    return sys.executable if beside else "python3"


def _dummy(lane: Lane, options: VllmOptions) -> Lane:
    """In a small context."""
    context = options.max_model_len
    return attrs.evolve(
        lane,
        options=attrs.evolve(
            options,
            load_format="dummy",
            max_model_len=CONTEXT if context is None else min(context, CONTEXT),
            extra_args=_without(options.extra_args, ("--load-format", "--max-model-len")),
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
