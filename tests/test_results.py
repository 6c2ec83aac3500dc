"""What was measured is kept: whatever is cut, damaged, locked or newer, nothing is lost and one sentence
says what to do."""

from __future__ import annotations

import copy
import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes.errors import LanesError, UsageError
from lanes.owners import Owner
from lanes.results import store as store_module
from lanes.results.document import Event, fold
from lanes.results.store import Store

SCHEMA = json.loads((Path(__file__).parent.parent / "docs/result.schema.json").read_text())
QUICK = ("--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0")
CELL = {"pp": 64, "tg": 8, "depth": 0, "concurrency": 1}
GONE = Owner(pid=2**22 + 1, created=1.0)
"""An owner that is not there: no system gives out that pid."""


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The events of a real run of two lanes, the first of which has two cells."""
    pytest.importorskip("lanes_echo")
    home = tmp_path_factory.mktemp("home")
    (home / "other.toml").write_text(
        'name = "other"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "lanes", "run", "--recipe", "echo", "--recipe", str(home / "other.toml"),
         *QUICK, "--concurrency", "1,2"],
        env={**os.environ, "LANES_HOME": str(home)}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    with sqlite3.connect(home / "history.sqlite") as db:
        rows = db.execute("SELECT at, kind, data FROM events ORDER BY seq").fetchall()
    db.close()
    return [Event(at=at, kind=kind, data=json.loads(data)) for at, kind, data in rows]


def passes(document):
    return [
        p for lane in document["lanes"] for i in lane["instruments"] for c in i["cells"] for p in c["passes"]
    ]


def test_a_journal_cut_at_any_event_tells_what_had_ended(journal):
    assert {"run", "new-lane", "findings", "phase", "launched", "instrument", "pass", "cell", "lane-end"} <= {
        event.kind for event in journal
    }
    validator = jsonschema.Draft202012Validator(SCHEMA)
    before = copy.deepcopy(journal)
    for cut in range(1, len(journal) + 1):
        for alive in (True, False):
            document = fold("r", journal[:cut], alive)
            validator.validate(document)
            assert len(passes(document)) == sum(e.kind == "pass" for e in journal[:cut])
            if not alive:
                states = [lane["status"] for lane in document["lanes"]]
                assert "running" not in json.dumps(states)
    assert journal == before, "folding changed the events"


def test_a_cell_that_was_cut_says_how_many_passes_had_ended(journal):
    cut = next(n for n, event in enumerate(journal, 1) if event.kind == "pass")
    for alive, word in ((True, "running"), (False, "interrupted")):
        (lane,) = fold("r", journal[:cut], alive)["lanes"]
        (cell,) = lane["instruments"][0]["cells"]
        assert (cell["status"], cell["reason"]) == ("invalid", f"{word}: 1 measured passes had ended")


def test_a_cell_whose_lane_has_ended_is_not_running_though_the_run_goes_on(journal):
    cut = next(n for n, event in enumerate(journal, 1) if event.kind == "pass")
    end = Event(at=journal[cut].at, kind="lane-end", data={"lane": 0, "status": "failed", "reason": "x"})
    (lane,) = fold("r", [*journal[:cut], end], True)["lanes"]
    assert lane["instruments"][0]["cells"][0]["reason"].startswith("interrupted")


@given(seed=st.integers(0, 10**6), keep=st.floats(0.2, 1))
def test_events_in_any_order_and_with_holes_fold_and_lose_no_pass(journal, seed, keep):
    dice = random.Random(seed)
    events = [event for event in journal if dice.random() < keep]
    dice.shuffle(events)
    document = fold("r", events, False)
    assert len(passes(document)) == sum(e.kind == "pass" for e in events)


def test_an_event_of_a_later_version_is_no_obstacle(journal):
    later = Event(at=1.0, kind="weather", data={"sky": "blue"})
    of_lane = Event(at=1.0, kind="power", data={"lane": 0, "power_w": 300})
    document = fold("r", [*journal[:3], later, of_lane, *journal[3:]], False)
    assert document["lanes"][0]["status"] == "measured"


# -- The store ------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from lanes.owners import Owner
from lanes.results.store import Store

sys.stdin.readline()
with Store(Path(sys.argv[1])) as store:
    run = store.begin(Owner.me(), command="run")
    store.append(run, "new-lane", name=sys.argv[2])
    for number in range(50):
        store.append(run, "phase", lane=0, phase=str(number))
    store.end(run, exit_code=0)
"""


def test_several_programs_may_write_a_new_history_at_once(tmp_path):
    file = tmp_path / "history.sqlite"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for writer in writers:
        _, err = writer.communicate(timeout=60)
        assert writer.returncode == 0, err.decode()
    with Store(file) as store:
        documents = list(store.recent(10))
    assert sorted(d["lanes"][0]["name"] for d in documents) == ["0", "1", "2", "3"]
    assert all([b["phase"] for b in d["lanes"][0]["boot"]] == [str(n) for n in range(50)] for d in documents)


@pytest.fixture
def file(tmp_path):
    """A history with one run in it, whose owner is gone."""
    path = tmp_path / "history.sqlite"
    with Store(path) as store:
        run = store.begin(GONE, command="run")
        store.append(run, "new-lane", name="a")
    return path


def test_a_run_whose_owner_is_gone_was_interrupted_and_one_that_lives_is_running(file):
    with Store(file) as store:
        store.begin(Owner.me(), command="bench")
        assert sorted(d["status"] for d in store.recent(5)) == ["interrupted", "running"]


def test_runs_that_begin_in_one_second_never_get_one_id(file, monkeypatch):
    monkeypatch.setattr(store_module.time, "time", lambda: 1_800_000_000.0)
    numbers = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(store_module.secrets, "token_hex", lambda _: next(numbers))
    with Store(file) as store:
        runs = [store.begin(GONE, command="run") for _ in range(2)]
        assert [run[-4:] for run in runs] == ["aaaa", "bbbb"]


def test_a_history_of_a_newer_lanes_is_left_alone(file):
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 7")
    db.close()
    before = file.read_bytes()
    with pytest.raises(LanesError) as caught:
        Store(file)
    assert caught.value.message == f"{file} was written by another version of lanes (schema 7, here 1)"
    assert caught.value.next_step == "upgrade lanes, or set LANES_HOME to another folder"
    assert file.read_bytes() == before


def test_a_history_that_is_none_is_left_alone(lanes):
    lanes.home.mkdir()
    (lanes.home / "history.sqlite").write_bytes(b"Dear diary, " * 1000)
    for command in (("history",), ("history", "show", "2026")):
        ran = lanes(*command)
        assert ran.code == 1
        assert "history.sqlite cannot be opened: file is not a database. move it away" in ran.said
        assert len(ran.err.strip().splitlines()) == 1
    assert (lanes.home / "history.sqlite").read_bytes().startswith(b"Dear diary")


def test_a_history_that_is_damaged_within_is_one_sentence(file):
    with Store(file) as store:
        run = store.begin(GONE, command="run")
        for number in range(500):
            store.append(run, "phase", lane=0, phase="x" * 100 + str(number))
    content = bytearray(file.read_bytes())
    content[8192:] = os.urandom(len(content) - 8192)
    file.write_bytes(content)
    with Store(file) as store, pytest.raises(LanesError, match=r"cannot be read: .* malformed") as caught:
        list(store.recent(5))
    assert "move it away" in str(caught.value)


def test_a_history_that_another_holds_is_waited_for_then_told(file, monkeypatch):
    monkeypatch.setattr(store_module, "BUSY_S", 0.1)
    holder = sqlite3.connect(file, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with Store(file) as store:
        # To look is never refused.
        assert [d["status"] for d in store.recent(5)] == ["interrupted"]
        with pytest.raises(LanesError, match="cannot be written: database is locked") as caught:
            store.begin(Owner.me(), command="run")
        assert "try again" in str(caught.value)
        holder.execute("ROLLBACK")
        store.begin(Owner.me(), command="run")
    holder.close()


def _as_nobody(path):
    """What the store says to a user who may not write."""
    read_end, write_end = os.pipe()
    if not (child := os.fork()):
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            with Store(path) as store:
                store.begin(GONE, command="run")
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write_end, said.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with open(read_end, encoding="utf-8") as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_history_that_may_not_be_written_is_one_sentence(file, tmp_path_factory):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.sqlite"
        path.write_bytes(file.read_bytes())
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        said = _as_nobody(path)
        Path(folder).chmod(0o755)
    assert said.startswith(f"LanesError: the store {path} cannot be ")
    assert said.endswith("make it writable, or set LANES_HOME to another folder")


def test_a_home_that_cannot_be_made_is_one_sentence(lanes, tmp_path):
    (tmp_path / "home").write_text("a file, not a folder")
    ran = lanes("history")
    assert ran.code == 1
    assert f"the store {tmp_path}/home/history.sqlite cannot be opened" in ran.err
    assert len(ran.err.strip().splitlines()) == 1


# -- lanes history --------------------------------------------------------------------------------


def test_a_run_is_shown_by_its_id_or_the_start_of_it(file):
    with Store(file) as store:
        first = next(store.recent(1))["run"]
        assert store.document(first)["run"] == first
        assert store.document(first[:-1])["run"] == first
        second = store.begin(GONE, command="bench")
        assert store.document(second)["run"] == second
        with pytest.raises(UsageError, match="several runs begin with '20'"):
            store.document("20")
        for unknown in ("nope", "%", "_" * len(first)):
            with pytest.raises(UsageError, match="there is no run") as caught:
                store.document(unknown)
            assert "`lanes history` lists them" in str(caught.value)


def test_an_unknown_run_is_a_mistake_of_usage(lanes):
    ran = lanes("history", "show", "nope")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "lanes: there is no run 'nope'. `lanes history` lists them\n"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_whoever_reads_only_the_first_line_hears_no_complaint(form, lanes):
    lanes.home.mkdir()
    with Store(lanes.home / "history.sqlite") as store:
        for number in range(300):
            run = store.begin(GONE, command="run")
            store.append(run, "new-lane", name=f"lane {number} " + "x" * 300)
    process = lanes.start("history", "-n", "300", *form)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait(20)
