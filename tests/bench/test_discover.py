"""From a URL as people type it to an endpoint, or one sentence."""

from __future__ import annotations

import pytest
from lanes.bench.discover import discover, normalize
from lanes.errors import LaneError, UsageError
from lanes.testing.scripted import ScriptedServer


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("https://api.example.com/openai/v1/", "https://api.example.com/openai"),
        (" 10.0.0.1:30000/v1/chat/completions ", "http://10.0.0.1:30000"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_as_people_type_them(typed: str, url: str) -> None:
    assert normalize(typed) == url


@pytest.mark.parametrize("typed", ["", "ftp://host", "http://", "host:99999", "http://user:secret@host"])
def test_what_is_no_url_of_a_server(typed: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a server") as error:
        normalize(typed)
    assert error.value.next_step


def test_the_only_model_is_taken_and_a_known_server_recognized() -> None:
    with ScriptedServer(models=("gemma",), owned_by="llamacpp") as server:
        endpoint = discover(server.url + "/v1/")
    assert (endpoint.url, endpoint.model) == (server.url, "gemma")
    assert endpoint.dialect.name == "llamacpp"
    assert (endpoint.dialect.tokenize_path, endpoint.dialect.tokenize_field) == ("/tokenize", "content")
    assert endpoint.dialect.fixed_length == {"ignore_eos": True}


def test_the_tokenizer_of_an_unknown_server_is_found() -> None:
    with ScriptedServer() as server:
        dialect = discover(server.url).dialect
    assert (dialect.name, dialect.tokenize_path, dialect.tokenize_field) == ("openai", "/tokenize", "content")


def test_an_unknown_server_gets_the_plain_dialect() -> None:
    with ScriptedServer(tokenizer=False) as server:
        dialect = discover(server.url).dialect
    assert dialect.name == "openai" and dialect.tokenize_path is None and not dialect.fixed_length


def test_several_models_are_listed() -> None:
    with ScriptedServer(models=("a", "b")) as server:
        with pytest.raises(UsageError, match="serves 2 models: a, b"):
            discover(server.url)
        with pytest.raises(UsageError, match=r"does not serve c\. It serves a, b"):
            discover(server.url, "c")
        assert discover(server.url, "b").model == "b"


def test_a_server_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    with ScriptedServer(key="sk-secret") as server:
        with pytest.raises(UsageError, match="wants an API key"):
            discover(server.url)
        assert discover(server.url, api_key_env="SOME_KEY").dialect.api_key_env == "SOME_KEY"
        monkeypatch.setenv("SOME_KEY", "sk-wrong")
        with pytest.raises(UsageError) as error:
            discover(server.url, api_key_env="SOME_KEY")
    assert "sk-wrong" not in str(error.value)


def test_nothing_listens_or_something_else_does() -> None:
    with ScriptedServer() as server, pytest.raises(LaneError, match="HTTP 404 and no list of models"):
        discover(server.url + "/elsewhere")
    with pytest.raises(LaneError, match="nothing answers at"):
        discover(server.url)
