"""The two readers, and the API that both read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.compat.readers import PYTHON, Reference, ours_with_cdk, reference, reference_python
from support.compat.server import Server, serve


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


@pytest.fixture(scope="session")
def python() -> Path:
    """Return the path of the Python that has airbyte-cdk."""
    found = reference_python()
    if found is None:
        pytest.skip(f"the reference is not installed at {PYTHON}: `make test-compat` installs it")
    return found


@pytest.fixture(scope="session")
def reader(python: Path) -> Iterator[Reference]:
    with reference(python) as running:
        yield running


@pytest.fixture(scope="session")
def beside(python: Path) -> Iterator[Reference]:
    """Start our reader in the environment that also has airbyte-cdk."""
    with ours_with_cdk(python) as running:
        yield running
