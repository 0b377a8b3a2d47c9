"""Versions that MySQL would give the same start are rejected before anything is written."""

from __future__ import annotations

import pytest

from chronolake.errors import TargetError
from support.target.targets import HISTORY, Target, write_versions

pytestmark = pytest.mark.parametrize("config", ["mariadb"], indirect=True)


@pytest.mark.long
def test_starts_before_the_limit_are_moved_or_rejected(target: Target) -> None:
    # The first version starts half a second before the limit, and is moved to it.
    write_versions(target.lake, 1, ["a", "b"], first=500_000)
    result = target.publish(HISTORY)
    assert result.converted == {"_fivetran_start": 1}
    target.expect_equal(HISTORY)

    write_versions(target.lake, 2, ["a", "b", "c"], first=-5_000_000)
    before = target.rows(HISTORY)
    with pytest.raises(TargetError, match="the same start in MariaDB") as caught:
        target.publish(HISTORY)
    assert caught.value.column == "_fivetran_start"
    assert target.rows(HISTORY) == before
