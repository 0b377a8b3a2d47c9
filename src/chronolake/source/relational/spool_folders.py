"""Folders in which a run spools changes until they have landed."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def create_spool(folder: Path) -> Iterator[Path]:
    """Create a folder below this one, and remove it at the end of the block."""
    # Only one process at a time runs a pipeline: existing files were left by a crash.
    shutil.rmtree(folder, ignore_errors=True)
    spool = folder / uuid4().hex
    spool.mkdir(parents=True)
    try:
        yield spool
    finally:
        shutil.rmtree(folder, ignore_errors=True)
