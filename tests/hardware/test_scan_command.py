"""`lanes scan`: what it shows to a person and to a program, and images that a Docker engine holds."""

from __future__ import annotations

import gzip
import http.server
import threading

import pytest


@pytest.fixture
def wheel(build, put):
    return put(
        "engine.whl",
        build.wheel(
            {
                "pkg/common_ops.so": build.so("sm_90 sm_121a", machine=183),
                "pkg/flashmla.so": build.so("sm_90a", machine=183),
                "pkg/python.so": build.so(machine=183),
            }
        ),
    )


def test_a_person_sees_the_code_by_library_and_all_together(lanes, wheel):
    shown = lanes("scan", str(wheel))
    assert shown.code == 0
    for words in ("pkg/common_ops.so aarch64 sm_90 sm_121a", "pkg/flashmla.so aarch64 sm_90a", "2 with GPU code, 1 without",
                  "all together: sm_90 sm_90a sm_121a"):  # fmt: skip
        assert words in shown.said


@pytest.mark.parametrize("arch", ["sm_121", "12.1", "gb10", "dgx-spark"])
@pytest.mark.parametrize("decides, code, words", [
    ("*common_ops*", 0, "sm: RUNNABLE: pkg/common_ops.so: sm_121a is made for sm_121"),
    ("*flashmla*", 3, "sm: UNRUNNABLE: pkg/flashmla.so: none of its code (sm_90a) runs on sm_121"),
    (None, 0, "sm: UNKNOWN: the libraries disagree (1 runnable, 1 unrunnable)"),
])  # fmt: skip
def test_a_verdict_names_the_library_that_decides(lanes, wheel, arch, decides, code, words):
    shown = lanes("scan", str(wheel), "--arch", arch, *(("--decides", decides) if decides else ()))
    assert words in shown.said
    assert shown.code == code


def test_the_others_inform(lanes, wheel):
    shown = lanes("scan", str(wheel), "--arch", "gb10", "--decides", "*common_ops*").said
    assert "(informs) no" in shown
    assert "pkg/flashmla.so: no, none of its code" in shown


def test_a_program_gets_all_of_it_as_json(lanes, wheel):
    said = lanes("scan", str(wheel), "--arch", "gb10", "--decides", "*common_ops*", "--json").json
    assert said["schema"] == "lanes.scan/1"
    assert (said["verdict"], said["target"], said["gpu"]) == ("runnable", "sm_121", "GB10")
    assert {one["library"]: (one["verdict"], one["decides"]) for one in said["judged"]} == {
        "pkg/common_ops.so": ("runnable", True), "pkg/flashmla.so": ("unrunnable", False), "pkg/python.so": ("unknown", False),
    }  # fmt: skip
    assert said["libraries"][0]["codes"][1] == {
        "name": "sm_121a",
        "kind": "sass",
        "count": 1,
        "relocatable": False,
    }


@pytest.mark.parametrize("words, said", [
    (("nowhere.so",), "nowhere.so cannot be looked at: No such file or directory. Name a shared object"),
    ((), "Missing argument"),
    ((".", "--arch", "gb11"), "unknown GPU architecture 'gb11'. Did you mean gb10"),
    ((".", "--decides", "*"), "needs --arch"),
])  # fmt: skip
def test_a_mistake_is_told_with_what_to_do(lanes, words, said):
    shown = lanes("scan", *words)
    assert (shown.code, shown.out) == (2, "")
    assert said in shown.said


def test_a_broken_file_is_told_in_one_sentence(lanes, put, build):
    shown = lanes("scan", str(put("x.so", build.so("sm_90")[:200])))
    assert "x.so cannot be read: its table of" in shown.said


# -- Docker -----------------------------------------------------------------------------------------


class Engine(http.server.BaseHTTPRequestHandler):
    """As much of a Docker engine as `docker save` needs."""

    protocol_version = "HTTP/1.1"
    image = b""
    cut = False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/images/engine:1/get"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(self.image), 1000):
                part = self.image[at : at + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                if self.cut and at > 3000:
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")
            return
        known = {
            "/_ping": b"OK",
            "/version": b'{"ApiVersion": "1.44"}',
            "/images/engine:1/json": b'{"Id": "sha256:1"}',
        }
        body = next((body for end, body in known.items() if path.endswith(end)), None)
        self.send_response(200 if body else 404)
        body = body or b'{"message": "No such image"}'
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def engine(build):
    """A Docker engine with one image; gives how to reach it."""
    pytest.importorskip("docker")
    layer = build.tar({"opt/x.so": build.so("sm_121a", machine=183)})

    class Mine(Engine):
        image = build.tar(build.saved(layer))

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Mine, {"DOCKER_HOST": f"tcp://127.0.0.1:{server.server_port}"}
        server.shutdown()


def test_an_image_in_a_docker_engine_is_read_as_the_engine_sends_it(look, engine):
    found = look("docker:engine:1", "--arch", "gb10", env=engine[1])
    assert (found.libraries, found.problems) == ({"opt/x.so": "sm_121a"}, [])
    assert found.json["libraries"][0]["file"] == "docker:engine:1"
    assert found.json["verdict"] == "runnable"


def test_packed_layers_of_a_docker_engine_too(look, build, engine):
    layer = gzip.compress(build.tar({"opt/x.so": build.so("sm_90")}))
    engine[0].image = build.tar(build.oci(layer))
    assert look("docker:engine:1", env=engine[1]).libraries == {"opt/x.so": "sm_90"}


def test_an_image_that_is_not_there_is_told(look, engine):
    found = look("docker:other:2", env=engine[1])
    assert found.code == 2
    assert "has no image 'other:2'" in found.err
    assert "docker pull" in found.err


def test_an_engine_that_stops_sending_is_a_finding(look, engine):
    engine[0].cut = True
    found = look("docker:engine:1", "--arch", "gb10", env=engine[1])
    assert found.problems
    assert found.json["verdict"] == "unknown"


@pytest.mark.parametrize(
    "host", ["tcp://127.0.0.1:1", "unix:///nowhere/docker.sock", "nonsense://x", "tcp://"]
)
def test_no_engine_is_told_with_what_to_do_instead(look, host):
    pytest.importorskip("docker")
    found = look("docker:engine:1", env={"DOCKER_HOST": host})
    assert found.code == 2
    assert "no Docker engine answers" in found.err
    assert "docker save" in found.err
    assert len(found.err.splitlines()) == 2


def test_without_the_docker_package_it_is_told_and_all_else_works(look, put, build, tmp_path):
    put("hidden/docker.py", b"raise ImportError")
    env = {"PYTHONPATH": str(tmp_path / "hidden")}
    found = look("docker:engine:1", env=env)
    assert found.code == 2
    assert "pip install docker" in found.err
    assert look(put("x.so", build.so("sm_90")), env=env).libraries == {"x.so": "sm_90"}


def test_a_file_may_be_called_like_an_image(look, put, build, tmp_path, monkeypatch):
    put("docker:x", build.so("sm_90"))
    monkeypatch.chdir(tmp_path)
    assert look("docker:x").libraries == {"docker:x": "sm_90"}
