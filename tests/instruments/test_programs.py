"""Programs of others, stood in for by scripts: found, started, ended, and what they leave."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lanes.errors import LaneError
from lanes.instruments import benchy, tooleval
from lanes.instruments.programs import Folder, Program, clean_environment, interpreter_of, run

PROGRAM = Program(command="stand-in", package="stand-in", tried=("1.2.3",))


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a console script on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(source: str, name: str = "stand-in") -> Path:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return write


def still() -> None:
    """Watch, and see nothing."""


@pytest.mark.parametrize(
    ("instrument", "command"),
    [
        (benchy, "pip install llama-benchy==0.4.0"),
        (tooleval, "pip install tool-eval-bench==2.8.0"),
    ],
)
def test_a_missing_program_is_one_sentence_with_the_command(
    instrument: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    lacking = str(instrument.INSTRUMENT.needs())
    assert command in lacking
    assert "\n" not in lacking
    with pytest.raises(LaneError, match=command):
        instrument.PROGRAM.installed()


def test_a_program_that_does_not_tell_its_version(stand_in: Callable[[str], Path]) -> None:
    stand_in("")
    with pytest.raises(LaneError) as caught:
        PROGRAM.installed()
    assert "stand-in does not tell its version: " in caught.value.message
    assert "install it anew: pip install stand-in==1.2.3" in str(caught.value.next_step)


def test_an_untried_version_has_a_note() -> None:
    installed = Program(command="pytest", package="pytest", tried=("1.0",)).installed()
    assert int(installed.version.split(".")[0]) >= 8
    assert installed.note == f"pytest is {installed.version} here, and what is known of it was seen with 1.0"


def test_the_interpreter_of_a_script_with_a_long_path(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n")
    assert interpreter_of(script) == sys.executable
    script.write_text("#!/bin/sh\necho\n")
    assert interpreter_of(script) is None
    script.write_bytes(b"\x7fELF")
    assert interpreter_of(script) is None


def test_settings_of_the_users_change_nothing_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOOL_EVAL_MODEL", "PYTHONPATH", "PYTHONHOME"):
        monkeypatch.setenv(name, "/else")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    env = clean_environment(EXTRA="1")
    assert not {"TOOL_EVAL_MODEL", "PYTHONPATH", "PYTHONHOME"} & set(env)
    assert (env["NO_PROXY"], env["EXTRA"]) == ("*", "1")


def test_what_it_prints_is_kept_without_secrets(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    path = stand_in("import sys; print('key is sk-1'); print(sys.argv[1:], file=sys.stderr); sys.exit(3)")
    with Folder(lambda text: text.replace("sk-1", "***")) as folder:
        ended = run([sys.executable, str(path), "a b"], folder, clean_environment(), still, 30)
        folder.keep("log", tmp_path / "kept")
        folder.keep("never", tmp_path / "none")
    assert (ended.code, ended.last) == (3, "['a b']")
    assert (tmp_path / "kept").read_text() == "key is ***\n['a b']\n"
    assert not (tmp_path / "none").exists()
    assert not folder.path.exists()


CHILD = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(99)"
STUBBORN = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
open("child", "w").write(str(child.pid))
print("ready", flush=True)
try:
    time.sleep(99)
except KeyboardInterrupt:
    open("saved", "w").write("what there was")
    raise SystemExit(1)
"""


@pytest.mark.parametrize("failure", [KeyboardInterrupt, LaneError])
def test_an_end_before_its_time_lets_it_save_and_leaves_no_child(
    stand_in: Callable[[str], Path], tmp_path: Path, failure: type[BaseException]
) -> None:
    path = stand_in(STUBBORN)
    with Folder(str) as folder:

        def watch() -> None:
            if "ready" in folder.read("log"):
                raise failure("enough")

        with pytest.raises(failure):
            run([sys.executable, str(path)], folder, clean_environment(), watch, 30)
        assert folder.read("saved") == "what there was"
        child = int(folder.read("child"))
    until = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until, "its child lives on"
            time.sleep(0.05)


def test_a_program_that_says_nothing_is_ended(stand_in: Callable[[str], Path]) -> None:
    path = stand_in("import time; print('once', flush=True); time.sleep(99)")
    started = time.monotonic()
    with Folder(str) as folder, pytest.raises(LaneError, match="said nothing for 1 s"):
        run([sys.executable, str(path)], folder, clean_environment(), still, 1.0)
    assert time.monotonic() - started < 30


def test_a_program_that_goes_on_saying_something_is_not(stand_in: Callable[[str], Path]) -> None:
    path = stand_in("import time\nfor n in range(8):\n    print(n, flush=True)\n    time.sleep(0.5)")
    with Folder(str) as folder:
        assert run([sys.executable, str(path)], folder, clean_environment(), still, 3.0).last == "7"


def test_the_starter_hands_the_key_over_and_takes_it_out_of_the_environment(
    stand_in: Callable[..., Path],
) -> None:
    """Into the arguments that llama-benchy reads, not those that the system lists."""
    source = "import os, sys, time; print(sys.argv[1:], 'LANES_PROGRAM_KEY' in os.environ, flush=True); time.sleep(1.5)"
    path = stand_in(source, "llama-benchy")
    installed = Program(command="llama-benchy", package="pytest", tried=()).installed()
    assert installed.path == path
    seen: list[list[str]] = []
    # What the starter changes in aiohttp needs none of it here.
    env = clean_environment(LANES_PROGRAM_KEY="sk-1", PYTHONPATH=str(path.parent / "stub"))
    (path.parent / "stub" / "aiohttp").mkdir(parents=True)
    (path.parent / "stub" / "aiohttp" / "__init__.py").write_text("")
    (path.parent / "stub" / "aiohttp" / "client.py").write_text("")
    me = psutil.Process()
    with Folder(str) as folder:

        def watch() -> None:
            for child in me.children(recursive=True):
                with contextlib.suppress(psutil.Error):  # it has just ended
                    seen.append(child.cmdline())

        ended = run(installed.argv(["--pp", "8"]), folder, env, watch, 30)
    assert ended.last == "['--pp', '8', '--api-key', 'sk-1'] False"
    assert any(str(path) in line for line in seen)
    assert not any("sk-1" in part for line in seen for part in line)


def test_a_starter_whose_lanes_is_gone_ends_with_it(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    path = stand_in("import time; time.sleep(99)")
    starter = Path(benchy.__file__).with_name("programs_start.py")
    parent = f"import subprocess; p = subprocess.Popen([{sys.executable!r}, {str(starter)!r}, {str(path)!r}]); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline()))
    until = time.monotonic() + 20
    # It has asked to be ended once the script has begun.
    while str(path) not in child.cmdline() or child.cpu_times().user < 0.01:
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(1.0)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs([child], timeout=20)
    assert not alive
