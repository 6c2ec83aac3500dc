"""What Ctrl-C does: once it ends the work and cleans up; again while cleaning up it hurries."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_ASKING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP"))


_asked: object = None
"""The event loop that was asked to end."""
_MOMENT_S = 0.01


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _asked
    # In a loop it is raised between two steps: within a task's, it would be told of as that task's failure.
    loop = _running_loop()
    if loop is None or loop is _asked:
        raise KeyboardInterrupt
    _asked = loop
    loop.call_soon_threadsafe(_end)


def _end() -> None:
    raise KeyboardInterrupt


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """What is raised in a destructor or a callback of a weak reference goes nowhere. A person who asked to
    end is heard a moment later instead."""
    if unraisable.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(unraisable)
        return
    import threading

    heard = [number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN]
    main = threading.main_thread().ident
    if heard and main is not None:  # the main thread itself: it may be asleep
        threading.Timer(_MOMENT_S, signal.pthread_kill, (main, heard[0])).start()


def install() -> None:
    """Have SIGTERM and a closed terminal end this program as Ctrl-C does, cleaning up."""
    sys.unraisablehook = _unraisable
    for number in _ASKING:
        # A signal that the parent had ignored (nohup) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


class Hurry:
    """Whether the person asked again."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked


@contextlib.contextmanager
def held_off() -> Iterator[Hurry]:
    """Run the block to its end whatever is asked; the block may look whether it should hurry."""
    hurry = Hurry()

    def ask(number: int, frame: FrameType | None) -> None:
        hurry.asked = True

    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: nothing reaches us there
        heard = [number for number in _ASKING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, ask) for number in heard}
    try:
        yield hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
