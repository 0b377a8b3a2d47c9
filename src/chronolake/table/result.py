"""What became of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class BatchResult:
    """Counts of one applied batch.

    Attributes:
        batch: the batch's identity, as it stands in the table's properties.
        replaced: rows in replace files.
        updated: rows in update files, ignored ones included.
        deleted: rows in delete files.
        ignored: update rows that no stored or earlier row could complete.
        ignored_key: the key of one ignored row as `column=value, …`, or None.
        contradicting: versions of a history batch that were taken as they are although their own
            times and `_fivetran_active` do not agree.
        closed_at_start: active versions of a history table that a delete from before their start
            has closed.
        seconds: time by stage: read, resolve, branch, delete, append, publish.
    """

    batch: str
    replaced: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    ignored_key: str | None = None
    contradicting: int = 0
    closed_at_start: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
