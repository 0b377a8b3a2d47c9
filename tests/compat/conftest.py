"""The two readers, and the API that both read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from readers import PYTHON, Reference, ours_with_cdk, reference, reference_python
from serving import Server, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def reader() -> Iterator[Reference]:
    python = reference_python()
    if python is None:
        pytest.skip(f"the reference is not installed at {PYTHON}: `make test-compat` installs it")
    with reference(python) as running:
        yield running


@pytest.fixture(scope="session")
def beside() -> Iterator[Reference]:
    """Our reader where airbyte-cdk is installed, too."""
    python = reference_python()
    if python is None:
        pytest.skip(f"the reference is not installed at {PYTHON}: `make test-compat` installs it")
    with ours_with_cdk(python) as running:
        yield running
