"""`lanes report --bug`: all that an engine's maintainers need, and no secret."""

from __future__ import annotations

import base64
import json
import tarfile
import urllib.parse
from pathlib import Path

import pytest
from lanes.bugs.secrets import Redactor, of_argv
from lanes.executors.process import free_ports

PLANTED = {
    "HF_TOKEN": "hf_PlAnTeDoNeXyZ0123456789abcdef",
    "SITE_API_KEY": "p1anted/with+signs&more=4711",
    "DB_PASSWORD": 'plänted "quoted" secret',
}


def log_lines() -> list[str]:
    """Every way in which an engine may print a secret."""
    key = PLANTED["SITE_API_KEY"]
    return [
        f"starting with HF_TOKEN={PLANTED['HF_TOKEN']}",
        f"GET https://hub/model?token={urllib.parse.quote(key, safe='')} HTTP/1.1",
        f"headers: {{'Authorization': 'Bearer {key}'}}",
        json.dumps({"env": PLANTED}),
        "Authorization: Basic " + base64.b64encode(f"me:{key}".encode()).decode(),
        *(f"dump {base64.b64encode(b'x' * n + key.encode()).decode()} end" for n in range(3)),
        "Authorization: Bearer planted-by-form-5",
        "pulled from https://someone:pl4ntedpass@registry.example/v2",
        "aws AKIAPLANTED012345678 and ghp_plantedplantedplanted0123",
        '{"api_key": "planted-by-form-1", "password": "planted, by \\"form\\" 2 planted"}',
        "token='planted by form 6' and more",
        "args: --admin-api-key planted-by-form-3 --port 8000",
        "secret_access_key = planted-by-form-4",
        "-----BEGIN RSA PRIVATE KEY-----",
        "plantedplantedplantedplanted",
        "-----END RSA PRIVATE KEY-----",
        "kernel timed out at seq 42, as it was told to",
    ]


@pytest.fixture
def crashed(echo, tmp_path, monkeypatch):
    """A run in which a prompt killed the lane, with secrets in its recipe and all over its log."""
    recipe = tmp_path / "lab.toml"
    env = "\n".join(f"{name} = {json.dumps(value)}" for name, value in PLANTED.items())
    recipe.write_text(
        f'name = "lab"\nengine = "echo"\n[model]\nname = "m"\n[options]\ndie_above_tokens = 3000\n[env]\n{env}\n'
    )
    echo.env["CI_JOB_TOKEN"] = "planted-in-our-own-environment"
    ran = echo("run", "--recipe", str(recipe), "--instrument", "survival", "--json")
    (lane,) = ran.json["lanes"]
    assert (lane["status"], lane["reason"].partition(":")[0]) == ("unmeasurable", "crashes at 4,096 tokens")
    with open(Path(lane["folder"]) / "rank0" / "log", "a") as log:
        log.write("\n".join([*log_lines(), "planted-in-our-own-environment", ""]))
    return echo, ran.json["run"], tmp_path


def test_the_bundle_has_all_that_is_needed_and_no_secret(crashed):
    lanes, run, tmp_path = crashed
    archive = tmp_path / "bug.tar.gz"
    made = lanes("report", "--bug", run, "--output", str(archive), "--json").json
    assert made["path"] == str(archive) and made["hidden"] > 15
    with tarfile.open(archive) as tar:
        files = {m.name.removeprefix("bug/"): tar.extractfile(m).read().decode() for m in tar.getmembers()}
    assert set(files) == set(made["files"]) == {
        "README.md", "result.json", "logs/rank0.log", "logs/survival-rank0.log",
        "requests/survival-request1.json",
    }  # fmt: skip
    everything = "\n".join(files.values())
    assert [line for line in everything.splitlines() if "planted" in line.lower()] == []
    for secret in [*PLANTED.values(), "p1anted", "pl4nted", "pl\\u00e4nted"]:
        assert secret not in everything
    assert "kernel timed out at seq 42" in files["logs/rank0.log"]
    assert "starting with HF_TOKEN=(hidden)" in files["logs/rank0.log"]
    page = files["README.md"]
    assert page.startswith("# echo 0.1.0: crashes at 4,096 tokens\n")
    for needed in (
        "lanes_echo.server",
        "--die-above-tokens 3000",
        "| plugin | lanes-echo",
        "| kernel |",
        "curl -N",
    ):
        assert needed in page
    request = json.loads(files["requests/survival-request1.json"])
    assert [m["role"] for m in request["messages"]][:4] == ["system", "user", "assistant", "tool"]
    assert request["tools"]
    result = json.loads(files["result.json"])
    assert result["lanes"][0]["status"] == "unmeasurable"


def test_a_folder_will_do_and_nothing_is_written_over(crashed):
    lanes, run, tmp_path = crashed
    folder = tmp_path / "bug"
    assert lanes("report", "--bug", run[:8], "--output", str(folder)).out == f"{folder}\n"
    assert (folder / "README.md").exists() and (folder / "logs" / "rank0.log").exists()
    again = lanes("report", "--bug", run, "--output", str(folder))
    assert again.code == 2
    assert f"{folder} exists already. name another place with --output, or remove it" in again.said


def test_the_prompt_in_the_bundle_kills_the_server_again(crashed):
    """Sent as the page says, to the server that the page says how to start."""
    import http.client
    import os
    import shlex
    import socket
    import subprocess
    import time

    lanes, run, tmp_path = crashed
    folder = tmp_path / "bug"
    lanes("report", "--bug", run, "--output", str(folder))
    line = next(one for one in (folder / "README.md").read_text().splitlines() if "lanes_echo.server" in one)
    words = [word for word in shlex.split(line) if not word.startswith(tuple(PLANTED))]
    # The port of then may be another's by now.
    (port,) = free_ports("127.0.0.1", 1)
    words[words.index("--port") + 1] = str(port)
    env = lanes.env | {"PYTHONPATH": os.pathsep.join(map(str, lanes.path))}
    with subprocess.Popen(words, env=env, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                time.sleep(0.1)
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
            time.sleep(0.5)
            body = (folder / "requests" / "survival-request1.json").read_bytes()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            with pytest.raises((http.client.HTTPException, OSError)):
                connection.request("POST", "/v1/chat/completions", body)
                connection.getresponse()
            assert server.wait(60) == 8
        finally:
            server.kill()


def test_what_cannot_be_reported_is_one_sentence(echo):
    assert "or --bug RUN" in echo("report").said
    assert "there is no run 'nonsense'" in echo("report", "--bug", "nonsense").said
    run = echo(
        "run", "--engine", "echo", "--pp", "64", "--tg", "8", "--passes", "1", "--warmups", "0", "--json"
    ).json["run"]
    refused = echo("report", "--bug", run)
    assert refused.code == 2
    assert f"no lane of run {run} failed. name one all the same with --lane: echo" in refused.said
    assert (
        f"run {run} has no lane 'other'. it has echo" in echo("report", "--bug", run, "--lane", "other").said
    )


def test_no_quoting_hides_a_secret():
    """Data holds text that holds data."""
    inner = json.dumps({"log": [json.dumps({"api_key": 'planted "one"'})], "password": "planted two"})
    redact = Redactor([])
    said = redact.data({"evidence": {"log": [inner], "hf_token": "planted three", "max_tokens": 8}})
    assert "planted" not in json.dumps(said)
    assert said["evidence"]["max_tokens"] == 8
    assert redact.count == 3


INNOCENT = [
    "token_usage: 0.31, max_total_num_tokens=9180000, n_tokens = 12",
    "tokenizer=/models/tok tokenizer_mode: auto",
    "author: someone, authored by somebody",
    "KV cache: key_cache dtype bf16",
    "keyboard interrupt; the key is in the map",
    "tensor-parallel peer failed: RoCE proxy failed: two-shot op 17 abandoned: kernel timed out at seq 9",
    "rank 0 listens on http://127.0.0.1:8000/v1",
    "api_key=None, hf_token: null",
    "prompt eval time = 3542.10 ms / 2048 tokens ( 1.73 ms per token, 578.19 tokens per second)",
]


@pytest.mark.parametrize("line", INNOCENT)
def test_what_is_no_secret_stays(line):
    redact = Redactor([])
    assert redact(line) == line
    assert redact.count == 0


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (("serve", "--api-key", "abcdef"), ["abcdef"]),
        (("serve", "--api-key=abcdef", "--port", "1"), ["abcdef"]),
        (("serve", "--hf-token", "--port", "1"), []),
        (("serve", "--max-num-batched-tokens", "4096", "--tokenizer", "/m", "--kv-key-type", "f16"), []),
        (("serve", "--admin_api_key", "x1y2z3"), ["x1y2z3"]),
    ],
)
def test_secrets_on_a_command_line(argv, found):
    assert list(of_argv(argv)) == found
