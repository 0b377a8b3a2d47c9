"""The location of the real files: made by the vendor's tester, not part of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[3] / "shared" / "data" / "partner-sdk"


@pytest.fixture(scope="session")
def vendor() -> Path:
    """Return the folder with `inputs/` and `files/`."""
    if not VENDOR.is_dir():
        pytest.skip("the vendor's scenarios and files are not there (../shared/data/partner-sdk)")
    return VENDOR
