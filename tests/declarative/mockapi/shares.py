"""How much of the real manifests runs: `python -m mockapi.shares` prints a table of it.

It takes `tests` and `tests/declarative` on the PYTHONPATH, and the manifests beside the repository.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable

from mockapi import written
from mockapi.trying import Outcome, mocked, names, real


def outcomes(chosen: Iterable[str]) -> list[Outcome]:
    """What becomes of the streams of some manifests, read from their own APIs."""
    found = []
    for name in chosen:
        one = real(name)
        with mocked(one) as trial:
            found += [trial.tried(*named) for named in written.streams(one.written)]
    return found


def table(found: Iterable[Outcome]) -> str:
    """The shares of manifests, streams and incremental streams that run, and why others do not."""
    streams = list(found)
    manifests = {one.manifest for one in streams}
    whole = manifests - {one.manifest for one in streams if not one.runs}
    partly = {one.manifest for one in streams if one.runs} - whole
    incremental = [one for one in streams if one.is_incremental]
    lines = [
        _line("manifests that load", len(manifests), len(manifests)),
        _line("  all of whose streams run", len(whole), len(manifests)),
        _line("  some of whose streams run", len(partly), len(manifests)),
        _line("streams that run", _count(streams, lambda one: one.runs), len(streams)),
        _line("  of more than one page", _count(streams, lambda one: one.is_several), len(streams)),
        _line(
            "incremental streams that run",
            _count(incremental, lambda one: one.runs and one.is_rising),
            len(incremental),
        ),
        f"pages {sum(one.pages for one in streams)}, records {sum(one.records for one in streams)}",
        "not supported:",
    ]
    reasons = Counter(reason for one in streams for reason in set(one.unsupported))
    lines += [f"  {reason}: {count} streams" for reason, count in reasons.most_common()]
    wrong = [one for one in streams if one.faults]
    lines += [f"WRONG {one.manifest} {one.stream}: {one.faults[:2]}" for one in wrong]
    return "\n".join(lines)


def _count(streams: list[Outcome], counts: Callable[[Outcome], bool]) -> int:
    return sum(1 for one in streams if counts(one))


def _line(what: str, count: int, of: int) -> str:
    return f"{what:<32} {count:>5} of {of:<5} {count / max(of, 1):6.1%}"


if __name__ == "__main__":
    sys.stdout.write(table(outcomes(sys.argv[1:] or names())) + "\n")
