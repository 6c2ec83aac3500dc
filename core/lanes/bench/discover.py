"""An `Endpoint` from a bare URL: which model, and what kind of server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from lanes.bench.deltas import error_message
from lanes.bench.http import api_key
from lanes.errors import LaneError, UsageError
from lanes.types import Dialect, Endpoint

_TIMEOUT_S = 10.0

_DIALECTS: dict[str, dict[str, Any]] = {
    "llamacpp": {
        "tokenize_path": "/tokenize",
        "fixed_length": {"ignore_eos": True},
        "metrics_path": "/metrics",
        "metrics": {
            "running": "llamacpp:requests_processing",
            "queued": "llamacpp:requests_deferred",
            "generated": "llamacpp:tokens_predicted_total",
        },
    },
    "vllm": {
        "tokenize_path": "/tokenize",
        "tokenize_field": "prompt",
        "fixed_length": {"ignore_eos": True},
        "metrics_path": "/metrics",
        "metrics": {
            "running": "vllm:num_requests_running",
            "queued": "vllm:num_requests_waiting",
            "kv_use": "vllm:kv_cache_usage_perc",
            "generated": "vllm:generation_tokens",
            "accepted": "vllm:spec_decode_num_accepted_tokens",
            "drafts": "vllm:spec_decode_num_drafts",
        },
    },
    "sglang": {
        "tokenize_path": "/tokenize",
        "tokenize_field": "prompt",
        "fixed_length": {"ignore_eos": True},
        "metrics_path": "/metrics",
        "metrics": {
            "running": "sglang:num_running_reqs",
            "queued": "sglang:num_queue_reqs",
            "kv_use": "sglang:token_usage",
            "acceptance": "sglang:spec_accept_length",
            "generated": "sglang:generation_tokens_total",
        },
    },
}
"""By the `owned_by` of the servers' model lists. A wrong guess is harmless: a tokenizer that does not
answer is given up, a field that is refused is left out, and metrics that are not there are not asked for again."""


def normalize(url: str) -> str:
    """Return `url` with a scheme, without a trailing slash and without `/v1`.

    Raises UsageError when it is no URL of a server.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    parts = urlsplit(text)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise UsageError(f"{url!r} is not the URL of a server", "Write it like http://127.0.0.1:8000")
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def discover(url: str, model: str | None = None, api_key_env: str | None = None) -> Endpoint:
    """Ask the server at `url` for its models and return its endpoint.

    `model` may be left out when the server has one only. `api_key_env` names the environment
    variable that holds the API key. Raises UsageError when the URL, the key or the model's name is
    wrong, and LaneError when no OpenAI-compatible server answers.
    """
    base = normalize(url)
    models = _models(base, api_key(api_key_env))
    names = [m["id"] for m in models]
    if model is None:
        if len(names) != 1:
            raise UsageError(
                f"{base} serves {len(names)} models: {', '.join(names)}"
                if names
                else f"{base} serves no model",
                "Name one with --model" if names else None,
            )
        model = names[0]
    found = next((m for m in models if model == m["id"] or model in (m.get("aliases") or ())), None)
    if found is None:
        raise UsageError(f"{base} does not serve {model}", f"It serves {', '.join(names)}" if names else None)
    kind = str(found.get("owned_by", "")).lower().replace(".", "")
    name = kind if kind in _DIALECTS else "openai"
    hints = _DIALECTS.get(kind) or _tokenizer(base, model, api_key(api_key_env))
    return Endpoint(url=base, model=model, dialect=Dialect(name=name, api_key_env=api_key_env, **hints))


def _tokenizer(base: str, model: str, key: str | None) -> dict[str, Any]:
    """Where a server of an unknown kind counts tokens, if it does: most have /tokenize, under one of two
    fields."""
    import httpx2

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx2.Client(trust_env=False, timeout=_TIMEOUT_S, follow_redirects=False) as client:
        for name in ("content", "prompt"):
            body = {"model": model, name: "one two three four five six seven eight"}
            try:
                answer = client.post(f"{base}/tokenize", headers=headers, json=body)
                told = answer.json() if answer.status_code == 200 else None
            except (httpx2.HTTPError, ValueError):
                return {}
            # Some answer an unknown field with no tokens at all.
            if isinstance(told, dict) and (told.get("count") or len(told.get("tokens") or ()) > 1):
                return {"tokenize_path": "/tokenize", "tokenize_field": name}
    return {}


def _models(base: str, key: str | None) -> list[dict[str, Any]]:
    import httpx2

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx2.Client(trust_env=False, timeout=_TIMEOUT_S, follow_redirects=False) as client:
            response = client.get(f"{base}/v1/models", headers=headers)
        status = response.status_code
        data = response.json() if status == 200 else None
    except httpx2.ConnectError as error:
        raise LaneError(f"nothing answers at {base} ({error})", "Is the server running?") from None
    except httpx2.TimeoutException:
        raise LaneError(f"{base} did not answer within {_TIMEOUT_S:g} s") from None
    except httpx2.HTTPError as error:
        raise LaneError(f"{base} broke off its answer ({error})") from None
    except ValueError:
        raise LaneError(
            f"{base}/v1/models did not answer JSON", "Is it an OpenAI-compatible server?"
        ) from None
    if status in (401, 403):
        step = "The key is not the right one" if key else "Name the variable that holds it with --api-key-env"
        raise UsageError(f"{base} wants an API key (HTTP {status})", step)
    models = data.get("data") if isinstance(data, dict) else None
    if status != 200 or not isinstance(models, list):
        said = f": {error_message(data)}" if error_message(data) else ""
        raise LaneError(
            f"{base}/v1/models answered HTTP {status} and no list of models{said}",
            "Is it an OpenAI-compatible server?",
        )
    return [m for m in models if isinstance(m, dict) and isinstance(m.get("id"), str)]
