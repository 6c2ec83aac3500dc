"""What a recipe may set under `[options]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs


def _tokens(_: Any, attribute: attrs.Attribute[Any], value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"should be at least 1, not {value}")


@attrs.frozen(kw_only=True)
class DeepInferOptions:
    """How DeepInfer's offline example runs. Whatever is left at None is DeepInfer's own choice.

    `checkout`: the folder of its repository, built by its `build.sh`; the example lies there, and is not
    in the package.
    `python`: the interpreter that DeepInfer is installed in.
    `nextn_decode`: DEEPINFER_USE_NEXTN_DECODE, speculative decoding.
    `mtp_varlen`: DEEPINFER_ENABLE_MTP_VARLEN, verification scheduled by the draft's confidence.
    `prefill_truncation`: DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE, how much of a prefill is replayed.
    `prefill_keep_tokens`: DEEPINFER_YOCO_PREFILL_KEEP_TOKENS, what a truncated prefill keeps.
    `batch_invariant`: DEEPINFER_BATCH_INVARIANT, the same answer whatever else is in the batch.
    """

    checkout: str | None = None
    python: str = "python"
    nextn_decode: bool | None = None
    mtp_varlen: bool | None = None
    prefill_truncation: Literal["off", "mask", "compact"] | None = None
    prefill_keep_tokens: int | None = attrs.field(default=None, validator=_tokens)
    batch_invariant: bool | None = None

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that these options come to."""
        wanted = {
            "DEEPINFER_USE_NEXTN_DECODE": self.nextn_decode,
            "DEEPINFER_ENABLE_MTP_VARLEN": self.mtp_varlen,
            "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": self.prefill_truncation,
            "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS": self.prefill_keep_tokens,
            "DEEPINFER_BATCH_INVARIANT": self.batch_invariant,
        }
        return {
            name: str(int(value)) if isinstance(value, bool) else str(value)
            for name, value in wanted.items()
            if value is not None
        }
