"""AMD GPUs as the kernel's compute driver shows them under /sys/class/kfd, with no tool installed."""

from __future__ import annotations

from lanes.hardware.targets import of_capability
from lanes.types import Gpu

TOPOLOGY = "/sys/class/kfd/kfd/topology/nodes"

_FRAMEBUFFER = ("1", "2")


def parse_node(properties: str, banks: tuple[str, ...] = ()) -> Gpu | None:
    """A GPU from the texts of a node's `properties` and of its `mem_banks/*/properties`.

    None for a node that is a processor.
    """
    number = _fields(properties).get("gfx_target_version", "0")
    if not number.isdigit() or int(number) == 0:
        return None
    version = int(number)
    # 90402 is gfx942, 110501 is gfx1151: major, minor and step, the last two in hexadecimal.
    target = of_capability(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    memory = 0
    for bank in map(_fields, banks):
        if bank.get("heap_type") in _FRAMEBUFFER and bank.get("size_in_bytes", "").isdigit():
            memory += int(bank["size_in_bytes"])
    return Gpu(
        name=target.model.name if target.model else f"AMD {target.capability}",
        target=target.capability,
        memory_bytes=memory or None,
        unified=target.unified,
    )


def _fields(text: str) -> dict[str, str]:
    pairs = (line.split(None, 1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}
