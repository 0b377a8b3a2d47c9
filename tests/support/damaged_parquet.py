"""Parquet files whose footers are damaged at random."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator


def damage_footers(content: bytes, *, seed: int, number: int) -> Iterator[bytes]:
    """Yield copies of a Parquet file with one to five other bytes in or before the footer."""
    (length,) = struct.unpack("<I", content[-8:-4])
    numbers = random.Random(seed)
    for _ in range(number):
        damaged = bytearray(content)
        place = len(content) - 9 - numbers.randrange(length)
        for _ in range(numbers.choice([1, 2, 5])):
            damaged[max(0, place - numbers.randrange(5))] = numbers.randrange(256)
        yield bytes(damaged)
