"""The modes that each kind of stream supports."""

from __future__ import annotations

import pytest

from chronolake.errors import ConfigurationError
from chronolake.stream_modes import StreamCapabilities, allowed_modes, check_mode
from chronolake.types import Mode, TableName


@pytest.mark.parametrize(
    ("name", "is_history_only", "reason"),
    [
        ("account_history", False, "its name ends in _history"),
        ("account", True, "its source does not support other modes"),
    ],
)
def test_a_stream_that_is_history_is_nothing_else(
    name: str, *, is_history_only: bool, reason: str
) -> None:
    stream = StreamCapabilities(name, reports_changes=True, is_history_only=is_history_only)
    check_mode(stream, Mode.HISTORY)
    assert allowed_modes(stream) == [Mode.HISTORY]
    for mode in (Mode.LIVE, Mode.SOFT_DELETE):
        with pytest.raises(ConfigurationError, match=f"only be in history mode: {reason}"):
            check_mode(stream, mode)


def test_the_table_of_a_stream_may_have_the_suffix_or_opt_out() -> None:
    table = TableName("crm", "account_history")
    by_table = StreamCapabilities("account", reports_changes=True, is_history_table=True)
    assert allowed_modes(by_table) == [Mode.HISTORY]
    with pytest.raises(ConfigurationError) as raised:
        check_mode(by_table, Mode.LIVE, table=table)
    assert '{"crm.account_history": {history_only: false}}' in (raised.value.hint or "")
    opted_out = StreamCapabilities("price_history", reports_changes=True, is_history_table=False)
    assert allowed_modes(opted_out) == list(Mode)


def test_a_stream_that_does_not_report_changes_has_no_history() -> None:
    stream = StreamCapabilities("account", reports_changes=False)
    with pytest.raises(ConfigurationError, match="no timestamp"):
        check_mode(stream, Mode.HISTORY)
    check_mode(stream, Mode.LIVE)
    check_mode(stream, Mode.SOFT_DELETE)
    assert allowed_modes(stream) == [Mode.LIVE, Mode.SOFT_DELETE]
    either = StreamCapabilities("account", reports_changes=True)
    assert allowed_modes(either) == list(Mode)
