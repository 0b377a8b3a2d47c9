"""Pages that repeat: without an error, a stream whose API does so would be read for ever.

Nothing here reads anything, and what is kept does not grow with the number of pages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from chronolake.source.declarative.records.selection import Page

_SHOWN: Final = 200
_SECOND: Final = 2
#: APIs that name their tokens so keep a place at the server: the same token gives the next page.
_PLACE_AT_SERVER: Final = "scroll"


@dataclass
class Repetition:
    """Notices that the pages of one slice repeat.

    Attributes:
        stream: the stream's name, for the error.
        mask: hides the configuration's secrets in a text.
        may_repeat: whether one token may lead from page to page.
        may_begin_twice: whether the second page may be the first one again.
    """

    stream: str
    mask: Callable[[str], str]
    may_repeat: bool = False
    may_begin_twice: bool = False
    page: int = field(default=0, init=False)
    _digest: bytes | None = field(default=None, init=False)
    _saved: Any = field(default=None, init=False)
    _since: int = field(default=0, init=False)
    _power: int = field(default=1, init=False)

    def restart(self) -> None:
        """The pages begin again from the first one."""
        self.page, self._digest = 0, None
        self._saved, self._since, self._power = None, 0, 1

    def raise_if_repeated(
        self,
        token: Mapping[str, Any] | None,
        following: Mapping[str, Any] | None,
        page: Page,
        size: int | None,
    ) -> None:
        """Raise SourceError if a page is the one before it, or leads to a page that has been read.

        Args:
            token: of the page that has come; None: it was asked for without one.
            following: of the page that would come next; None: there is none.
            page: the page.
            size: how many records a full page has; None: any number.
        """
        self.page += 1
        is_same = page.digest is not None and page.digest == self._digest
        self._digest = page.digest
        if following is None:
            return
        is_full = page.extracted >= (size or 1)
        if self.may_begin_twice and self.page == _SECOND:
            is_same = False
        if is_same and (is_full or following == token):
            raise self._error(token, f"has the same records as page {self.page - 1}")
        if self.may_repeat:
            return
        if self._saved is not None and following == self._saved:
            which = "its own token" if following == token else "the token of an earlier page"
            raise self._error(following, f"gives {which} as that of the next page")
        # After Brent: one token is compared with, and is replaced after 1, 2, 4, 8 … pages. So a
        # cycle of any length is noticed before it has been read four times.
        if self._saved is None or self._since == self._power:
            self._saved, self._since, self._power = following, 0, 2 * self._power
        self._since += 1

    def _error(self, token: Mapping[str, Any] | None, what: str) -> SourceError:
        value = None if token is None else next(iter(token.values()), None)
        shown = "no token" if value is None else f"token {self.mask(repr(value))[:_SHOWN]}"
        return SourceError(
            f"The pages of the stream {self.stream} do not end: page {self.page} ({shown}) {what}.",
            hint="Look at the API's answers with `chronolake read`, and correct the manifest's "
            "paginator. If the API uses one token for all pages, list the stream in the source's "
            "`may_repeat_tokens`.",
        )


def keeps_place(*texts: object) -> bool:
    """Return whether a paginator's names say that the API keeps the place of a token."""
    return any(isinstance(text, str) and _PLACE_AT_SERVER in text.lower() for text in texts)
