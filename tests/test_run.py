"""`lanes run`: check, stage, launch, measure, stop, and a table at the end."""

from __future__ import annotations

QUICK = ("--pp", "96", "--tg", "24", "--passes", "3", "--warmups", "1")


def only_lane(ran):
    (lane,) = ran.json["lanes"]
    return lane


def test_one_command_measures_an_engine_and_stops_it(echo):
    ran = echo("run", "--engine", "echo", *QUICK, "--json")
    assert ran.code == 0
    lane = only_lane(ran)
    assert (lane["engine"], lane["name"], lane["status"], lane["verdict"]) == (
        "echo",
        "echo",
        "measured",
        "runnable",
    )
    assert [b["phase"] for b in lane["boot"]] == ["checking", "staging", "launching", "loading", "measuring"]
    (cell,) = lane["instruments"][0]["cells"]
    assert (cell["pp"], cell["tg"], cell["status"]) == (96, 24, "ok")
    assert [p["warmup"] for p in cell["passes"]] == [True, False, False, False]
    for name in ("ttft_s", "prefill_tps", "decode_tps", "e2e_s"):
        assert cell["metrics"][name]["n"] == 3
        assert cell["metrics"][name]["lo"] <= cell["metrics"][name]["median"] <= cell["metrics"][name]["hi"]
    # Echo sends 500 words a second; on a busy machine they come later.
    assert 100 < cell["metrics"]["decode_tps"]["median"] < 650


def test_the_table_is_on_stdout_and_nothing_else(echo):
    ran = echo("run", "--engine", "echo", *QUICK)
    assert ran.code == 0
    assert "pp96 tg24" in ran.out
    assert "decode tok/s" in ran.out
    assert "history show" not in ran.out


def test_a_grid_is_measured_cell_by_cell(echo):
    ran = echo(
        "run", "--engine", "echo", "--pp", "64,128", "--tg", "8", "--concurrency", "1,2", "--passes", "1",
        "--warmups", "0", "--json", "--set", "tokens_per_second=50",  # a rate also where a machine stands still
    )  # fmt: skip
    cells = only_lane(ran)["instruments"][0]["cells"]
    assert [(c["pp"], c["concurrency"]) for c in cells] == [(64, 1), (64, 2), (128, 1), (128, 2)]
    assert {"stream_decode_tps", "span_tps"} <= cells[1]["metrics"].keys()
    assert "decode_tps" not in cells[1]["metrics"]


def test_several_lanes_end_in_one_table_and_a_failed_one_is_a_row(echo, tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text(
        'name = "broken"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    ran = echo("run", "--recipe", str(broken), "--recipe", "echo", *QUICK, "--json")
    assert ran.code == 1
    broken_lane, good = ran.json["lanes"]
    assert broken_lane["status"] == "crashed"
    assert good["status"] == "measured"
    table = echo("history", "show", ran.json["run"])
    assert "crashed: the process exited with code 3 while loading" in table.said
    assert "measured" not in table.out or "pp96" in table.out


def test_both_lanes_of_a_run_get_the_same_prompts_and_the_next_run_gets_fresh_ones(echo, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text('name = "other"\nengine = "echo"\n[model]\nname = "m"\n')

    def answers(ran):
        return [
            [p["streams"][0]["text"] for p in lane["instruments"][0]["cells"][0]["passes"]]
            for lane in ran.json["lanes"]
        ]

    first, second = answers(echo("run", "--recipe", "echo", "--recipe", str(other), *QUICK, "--json"))
    assert first == second  # echo answers with the prompt's own words
    assert len(set(first)) == len(first)
    (later,) = answers(echo("run", "--recipe", "echo", *QUICK, "--json"))
    assert not set(later) & set(first)


def test_a_dry_run_shows_everything_and_does_nothing(echo):
    ran = echo("run", "--engine", "echo", "--set", "tokens_per_second=50", "--dry-run")
    assert ran.code == 0
    assert "lanes_echo.server" in ran.out
    assert "'<free port>'" in ran.out
    assert "--tokens-per-second 50" in ran.out
    assert "2 warm-ups and 5 passes" in ran.out
    assert not echo.records()
    assert echo("history", "--json").json == []


def test_the_port_can_be_chosen(echo, free_port):
    ran = echo("run", "--engine", "echo", "--port", str(free_port), *QUICK, "--json")
    assert only_lane(ran)["launch"]["endpoint"]["url"] == f"http://127.0.0.1:{free_port}"


def test_the_server_listens_on_loopback_only(echo):
    import psutil

    echo("serve", "--engine", "echo")
    listening = [
        c.laddr.ip
        for p in echo.processes()
        for c in p.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]
    assert echo("stop").code == 0


def test_an_engine_with_no_server_is_unmeasurable_not_failed(lanes, site, sleepy):
    site("sleepy", "sleepy_plugin", sleepy, {"sleepy": "lanes.engines"})
    ran = lanes("run", "--engine", "sleepy", "--model", "/", "--json")
    assert ran.code == 3
    assert only_lane(ran)["status"] == "unmeasurable"


def test_secrets_in_the_recipe_are_in_no_output(echo, tmp_path):
    recipe = tmp_path / "secret.toml"
    recipe.write_text(
        'name = "secret"\nengine = "echo"\n[model]\nname = "m"\n[env]\nHF_TOKEN = "hf_verysecret"\nPLAIN = "seen"\n'
    )
    for arguments in (["--dry-run"], ["--dry-run", "--json"], [*QUICK, "--json"]):
        ran = echo("run", "--recipe", str(recipe), *arguments)
        assert ran.code == 0, ran.err
        assert "seen" in ran.out
        assert "verysecret" not in ran.out + ran.err
    kept = b"".join(f.read_bytes() for f in echo.home.rglob("*") if f.is_file())
    assert b"verysecret" not in kept


def test_lanes_of_several_runs_are_compared_in_one_table(echo, tmp_path):
    broken = tmp_path / "broken.toml"
    broken.write_text(
        'name = "broken"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_while_loading = true\n'
    )
    first = echo("run", "--recipe", "echo", "--recipe", str(broken), *QUICK, "--json").json["run"]
    second = echo("run", "--engine", "echo", *QUICK, "--json").json["run"]
    table = echo("compare", first, second)
    assert table.code == 0
    assert "crashed: the process exited with code 3" in table.said
    sides = echo("compare", first, second, "--json").json["sides"]
    assert [(side["name"], side["status"], side["runs"]) for side in sides] == [
        ("echo", "measured", [first, second]),
        ("broken", "crashed", [first]),
    ]
    assert echo("compare", "no-such-run").code == 2
