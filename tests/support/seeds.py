"""Seeds of the tests that generate random data with `random.Random`.

Those that CI runs are written beside their tests. The long ones are drawn at random: every `make
test-all` uses other seeds, and prints the number with which the same ones are drawn again.
"""

from __future__ import annotations

import os
import random
from typing import Final

import pytest

#: `make test-all SEED=…` sets it.
SEED: Final = os.environ.get("CHRONOLAKE_SEED", "0")


def examples(number: int) -> int:
    """Return how many examples Hypothesis generates: in CI a quarter of what test-all does."""
    return number if "CHRONOLAKE_SEED" in os.environ else number // 4


def draw_seeds(test: str, number: int) -> list[int]:
    """Return a number of seeds for a test, the same in all processes that share the tests."""
    return random.Random(f"{test} {SEED}").sample(range(100, 1_000_000), number)


def with_drawn_seeds(*fixed: int, test: str, number: int) -> list[object]:
    """Return parameters: the fixed seeds for CI, and drawn ones for the long run."""
    return [
        *fixed,
        *(pytest.param(seed, marks=pytest.mark.long) for seed in draw_seeds(test, number)),
    ]
