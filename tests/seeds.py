"""Seeds of the tests that draw a world of their own with `random.Random`.

Tests that CI runs have fixed seeds. The long ones draw theirs: every `make test-all` tests other
worlds, and prints the number that draws the same ones again.
"""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

#: `make test-all SEED=…` sets it.
SEED: Final = os.environ.get("CHRONOLAKE_SEED", "0")


def drawn(test: str, number: int) -> list[int]:
    """Return `number` seeds for a test, equal in all processes that share the tests."""
    return random.Random(f"{test} {SEED}").sample(range(100, 1_000_000), number)


def and_drawn(*fixed: int, test: str, number: int) -> list[object]:
    """Parameters: these seeds for CI, and drawn ones for the long run."""
    return [
        *fixed,
        *(pytest.param(seed, marks=pytest.mark.long) for seed in drawn(test, number)),
    ]
