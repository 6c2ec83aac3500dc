"""SGLang keeps to what every engine plugin must."""

from __future__ import annotations

from lanes.testing import EngineSuite


class TestSglang(EngineSuite):
    engine = "sglang"
    failures = {
        "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish "
        "loading.": "load-skew",
        "RuntimeError: engram layer 1: a lookup of 190608 ids exceeds SPARK_ENGRAM_MAX_IDS=131072": "engram-ids",
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": "no-room-for-kv-cache",
        "RuntimeError: Rank 2 scheduler died during initialization (exit code: -9).": "out-of-memory",
        "Prefill out of memory. Try to lower your batch size.": "prefill-out-of-memory",
        "[sgl_kernel] CRITICAL: Could not load any common_ops library!": "no-gpu-code",
    }
