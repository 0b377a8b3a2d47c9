"""The share of the real manifests that run.

`PYTHONPATH=tests python -m support.declarative.mockapi.coverage` prints a table of it. It needs the
manifests beside the repository.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable

from support.declarative.mockapi import raw_manifest
from support.declarative.mockapi.trials import Outcome, mock_api, names, real


def outcomes(chosen: Iterable[str]) -> list[Outcome]:
    """Read the streams of some manifests from their own APIs; return their outcomes."""
    found = []
    for name in chosen:
        manifest = real(name)
        with mock_api(manifest) as trial:
            found += [trial.tried(*named) for named in raw_manifest.streams(manifest.written)]
    return found


def table(found: Iterable[Outcome]) -> str:
    """Format the shares of manifests and streams that run, and why others do not."""
    streams = list(found)
    manifests = {stream.manifest for stream in streams}
    whole = manifests - {stream.manifest for stream in streams if not stream.runs}
    partly = {stream.manifest for stream in streams if stream.runs} - whole
    incremental = [stream for stream in streams if stream.is_incremental]
    pages = sum(stream.pages for stream in streams)
    records = sum(stream.records for stream in streams)
    lines = [
        _line("manifests that load", len(manifests), len(manifests)),
        _line("  all of whose streams run", len(whole), len(manifests)),
        _line("  some of whose streams run", len(partly), len(manifests)),
        _line("streams that run", _count(streams, lambda stream: stream.runs), len(streams)),
        _line(
            "  of more than one page",
            _count(streams, lambda stream: stream.is_several),
            len(streams),
        ),
        _line(
            "incremental streams that run",
            _count(incremental, lambda stream: stream.runs and stream.is_rising),
            len(incremental),
        ),
        f"pages {pages}, records {records}",
        "not supported:",
    ]
    reasons = Counter(reason for stream in streams for reason in set(stream.unsupported))
    lines += [f"  {reason}: {count} streams" for reason, count in reasons.most_common()]
    wrong = [stream for stream in streams if stream.faults]
    lines += [f"WRONG {stream.manifest} {stream.stream}: {stream.faults[:2]}" for stream in wrong]
    return "\n".join(lines)


def _count(streams: list[Outcome], counts: Callable[[Outcome], bool]) -> int:
    return sum(1 for stream in streams if counts(stream))


def _line(what: str, count: int, of: int) -> str:
    return f"{what:<32} {count:>5} of {of:<5} {count / max(of, 1):6.1%}"


if __name__ == "__main__":
    sys.stdout.write(table(outcomes(sys.argv[1:] or names())) + "\n")
