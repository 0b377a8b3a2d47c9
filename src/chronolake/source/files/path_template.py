"""Path templates: paths with the placeholders `{date:FORMAT}`, `{stream}` and `*`.

`dumps/{stream}_{date:%Y-%m-%d}.parquet` matches `dumps/orders_2026-01-31.parquet`. Several dates in
a path are parts of one date: `{date:%Y}/{date:%m}/{date:%d}/orders.csv`. A part that occurs twice
has the same value in matching paths: `{date:%Y}/orders_{date:%Y-%m-%d}.csv`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_DIRECTIVE: Final = re.compile("%(.)")
_DEFAULT_FORMAT: Final = "%Y-%m-%d"
#: Regular expressions of the directives of a date.
_DIRECTIVES: Final = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{2}",
    "d": r"\d{2}",
    "j": r"\d{3}",
    "H": r"\d{2}",
    "I": r"\d{2}",
    "p": "[AaPp][Mm]",
    "M": r"\d{2}",
    "S": r"\d{2}",
    "f": r"\d{1,6}",
    "b": "[A-Za-z]{3}",
    "B": "[A-Za-z]{3,9}",
    "z": r"(?:Z|[+-]\d{2}:?\d{2})",
    "s": r"\d{1,11}",
    "%": "%",
}
#: Directives with which others are valid: at least one of each group. A year without a month begins
#: in January, and so on, but no part can be guessed that is larger than one in the path.
_YEAR, _MONTH, _DAY, _HOUR = ("Y", "y"), ("m", "b", "B", "j"), ("d", "j"), ("H", "I")
_NEEDED: Final = {
    "m": (_YEAR,),
    "b": (_YEAR,),
    "B": (_YEAR,),
    "d": (_YEAR, _MONTH),
    "j": (_YEAR,),
    "H": (_YEAR, _MONTH, _DAY),
    "I": (_YEAR, _MONTH, _DAY, ("p",)),
    "p": (("I",),),
    "M": (_HOUR,),
    "S": (("M",),),
    "f": (("S",),),
}
#: Directives for parts of a date that others may contain, too: their values must agree.
_NUMBERS: Final = frozenset("YymdjHIMS")
_NAMES: Final = frozenset("bBp")
_STREAM: Final = "stream"
#: The beginning of the names of a date's parts in regular expressions.
_PART: Final = "date_"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Match:
    """What the path of a file contains.

    Attributes:
        stream: the name in place of `{stream}`; None without one.
        at_micros: the date in microseconds since 1970; None without one.
    """

    stream: str | None
    at_micros: int | None


@dataclass(frozen=True)
class PathTemplate:
    """A path with placeholders.

    Attributes:
        text: the path as configured.
        time_zone: that of dates without an offset.
        place: the setting, for errors.
    """

    text: str
    time_zone: str
    place: str

    @cached_property
    def root(self) -> str:
        """Return the folder that contains all matching files."""
        begin = min((found for found in map(self.text.find, "{*") if found >= 0), default=-1)
        literal = self.text if begin < 0 else self.text[:begin]
        return literal.rpartition("/")[0]

    @cached_property
    def formats(self) -> list[str]:
        """Return the formats of the parts of the date."""
        found = _PLACEHOLDER.findall(self.text)
        return [
            name.partition(":")[2] or _DEFAULT_FORMAT
            for name in found
            if name.partition(":")[0] == "date"
        ]

    @property
    def has_stream(self) -> bool:
        """Return whether the path contains the stream's name."""
        return f"{{{_STREAM}}}" in self.text

    @property
    def default_stream(self) -> str | None:
        """Return a name for a stream: the path's last words before the date; None without any."""
        for part in reversed(self.text.split("/")):
            words = re.split(r"[{*]", part)[0].strip("_-. ")
            if "{" not in part and "*" not in part:
                words = part.split(".")[0].strip("_-. ")
            if words and not words.endswith(":"):
                return words
        return None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Return the regular expression of matching files below `root`.

        Raises:
            ConfigurationError: a placeholder is not valid.
        """
        rest = self.text[len(self.root) :].lstrip("/")
        return re.compile("".join(self._pieces(rest)) + "(?P<below>/.+)?")

    def match(self, path: str) -> Match | None:
        """Return what a path below `root` contains, or None for a path of another form.

        A file in a folder that matches belongs to it, unless a part of its path below the folder
        begins with a dot or underscore, as the files of other programs' commits do.
        """
        found = self.pattern.fullmatch(path)
        if found is None:
            return None
        below = found["below"] or ""
        if any(part.startswith((".", "_")) for part in below.split("/")):
            return None
        groups = found.groupdict()
        at_micros = None
        if self.formats:
            parts = {name[-1]: text for name, text in groups.items() if name.startswith(_PART)}
            at_micros = self._parse_date(parts)
            if at_micros is None:
                return None
        return Match(groups.get(_STREAM), at_micros)

    def _parse_date(self, parts: Mapping[str, str]) -> int | None:
        """Return a date in microseconds since 1970; None if there is no such day or time.

        Args:
            parts: the texts in the path, by directive.
        """
        if "s" in parts:
            return int(parts["s"]) * 1_000_000
        try:
            form = " ".join(f"%{directive}" for directive in parts)
            date = datetime.strptime(" ".join(parts.values()), form)  # noqa: DTZ007
        except ValueError:
            return None
        if not all(_agrees(date, directive, text) for directive, text in parts.items()):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=ZoneInfo(self.time_zone))
        return (date - _EPOCH) // timedelta(microseconds=1)

    def _pieces(self, rest: str) -> Iterator[str]:
        end, directives, has_stream = 0, list[str](), False
        for found in _PLACEHOLDER.finditer(rest):
            yield _literal(rest[end : found.start()])
            end = found.end()
            name, _, format_ = found[1].partition(":")
            if name == "date":
                yield self._date_pattern(format_ or _DEFAULT_FORMAT, directives)
            elif found[1] == _STREAM:
                yield f"(?P={_STREAM})" if has_stream else f"(?P<{_STREAM}>[^/]+?)"
                has_stream = True
            else:
                raise ConfigurationError(
                    f"{self.place}: {found[0]} is not a placeholder.",
                    hint="Write {date:%Y-%m-%d}, {stream} or *.",
                )
        yield _literal(rest[end:])
        if self.formats:
            self._expect_date(directives)

    def _expect_date(self, directives: Collection[str]) -> None:
        """Raise unless directives determine a date.

        Raises:
            ConfigurationError: a part of the date is missing.
        """
        if set(directives) == {"s"}:
            return
        if "s" in directives:
            raise ConfigurationError(
                f"{self.place}: the path has %s and other parts of a date.",
                hint="Write {date:%s} for seconds since 1970, or other directives.",
            )
        needed = [(f"%{name}", _NEEDED.get(name, ())) for name in directives]
        for name, groups in [*needed, ("a date", (_YEAR,))]:
            for group in groups:
                if not set(group) & set(directives):
                    options = " or ".join(f"%{option}" for option in group)
                    raise ConfigurationError(
                        f"{self.place}: the date in the path is not complete: {name} needs "
                        f"{options}.",
                        hint="Add that part to the path, such as {date:%Y-%m-%d}. Without any "
                        "{date:…}, files have the time when they were written (type: files).",
                    )

    def _date_pattern(self, format_: str, directives: list[str]) -> str:
        """Return the regular expression of a date.

        Args:
            format_: its format.
            directives: those in the path before it; the format's own are added.

        Raises:
            ConfigurationError: it contains another directive.
        """
        pieces, end = [], 0
        for found in _DIRECTIVE.finditer(format_):
            directive = found[1]
            if directive not in _DIRECTIVES or (directive == "s" and format_ != "%s"):
                raise ConfigurationError(
                    f"{self.place}: a date cannot contain {found[0]}.",
                    hint="Write directives of strftime with digits, such as %Y, %m, %d, %H, %M, %S "
                    "and %z; or %s alone, for seconds since 1970.",
                )
            pieces.append(re.escape(format_[end : found.start()]))
            end = found.end()
            if directive == "%":
                pieces.append("%")
            elif directive in directives:
                pieces.append(f"(?P={_PART}{directive})")
            else:
                pieces.append(f"(?P<{_PART}{directive}>{_DIRECTIVES[directive]})")
                directives.append(directive)
        return "".join([*pieces, re.escape(format_[end:])])


def _agrees(date: datetime, directive: str, text: str) -> bool:
    """Return whether a date has a part as its path has it."""
    own = date.strftime(f"%{directive}")
    if directive in _NUMBERS:
        return int(own) == int(text)
    return directive not in _NAMES or own.casefold() == text.casefold()


def _literal(text: str) -> str:
    return "[^/]*".join(map(re.escape, text.split("*")))
