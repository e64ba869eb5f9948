"""Named GPU cards and their memory.

Figures are what `nvidia-smi` shows as a card's total, in MiB, which differs from the number on the box: "80 GB" is
81,920 MiB on an A100 and 81,559 on an H100, and cards with GDDR memory give up 6.25 % to error correction where
it is on (T4, L4, A10, L40S), as NVIDIA's CUDA C++ Best Practices Guide says. What the driver and the CUDA context
take of it is not subtracted here.
"""

import re
from dataclasses import dataclass

from minfer.core.errors import DeviceError, did_you_mean

MIB = 2**20


@dataclass(frozen=True)
class Card:
    """One model of GPU; `memory` in bytes."""

    name: str
    title: str
    memory: int


def _card(name: str, title: str, mebibytes: int) -> Card:
    return Card(name, title, mebibytes * MIB)


_CARDS = (
    # thundergolfer.com/blog/nvidia-gpu-memory-capacity: a cloud's fleet, total memory as NVML reports it
    _card("t4", "Tesla T4 16 GB", 15_360),
    _card("l4", "L4 24 GB", 23_034),
    _card("a10", "A10 24 GB", 23_028),
    _card("l40s", "L40S 48 GB", 46_068),
    _card("a100-40gb", "A100 40 GB", 40_960),
    _card("a100-80gb", "A100 80 GB", 81_920),
    _card("h100", "H100 80 GB", 81_559),
    _card("h200", "H200 141 GB", 143_771),
    # nvidia-smi listings that users posted: github.com/geerlingguy/raspberry-pi-pcie-devices/issues/790 (3060),
    # noonghunna/club-3090/issues/390 (3090) and /1251 (5090), vllm-project/vllm/issues/7553 (4090); 4070: several
    _card("rtx3060", "GeForce RTX 3060 12 GB", 12_288),
    _card("rtx3090", "GeForce RTX 3090 24 GB", 24_576),
    _card("rtx4070", "GeForce RTX 4070 12 GB", 12_282),
    _card("rtx4090", "GeForce RTX 4090 24 GB", 24_564),
    _card("rtx5090", "GeForce RTX 5090 32 GB", 32_607),
    # HBM2 keeps its error correction beside the data: github.com/Wan-Video/Wan2.1/issues/5 shows 32,768 MiB
    _card("v100-16gb", "Tesla V100 16 GB", 16_384),
    _card("v100-32gb", "Tesla V100 32 GB", 32_768),
)
CARDS = {card.name: card for card in _CARDS}


def find_card(name: str) -> Card:
    """The card of that name, however it is spelt: "rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090".

    Raises `DeviceError` that lists the known ones.
    """
    wanted = _plain(name)
    for card in CARDS.values():
        if wanted == _plain(card.name):
            return card
    close = [known for known in CARDS if wanted and _plain(known).startswith(wanted)]
    hint = f" (did you mean {' or '.join(close)}?)" if close else did_you_mean(name.lower(), CARDS)
    raise DeviceError(f"card {name!r} is unknown{hint}; known: {', '.join(CARDS)}; or give its memory in GB")


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())
