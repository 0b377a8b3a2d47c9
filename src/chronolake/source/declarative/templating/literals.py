"""Python literals in texts that templates make, read in bounded memory.

Python's own parser takes 500 bytes for each character of "1,1,1". It reads short texts; longer ones
are read here, piece by piece, and what is made of them is counted before it is made. Both give the
same, but for what no value is printed as: a long text with comments, arithmetic or `set()` in it
stays a text.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Characters that Python's parser may have: it then needs some MiB.
SHORT: Final = 8_192
#: Bytes that the values of one text may take, as far as they are counted: some more, in fact.
LIMIT: Final = 64 << 20
#: Python's parser does not read brackets within more brackets than these.
_DEEPEST: Final = 200
#: Bytes of a container, and of any other value, each with its place in another.
_CONTAINER, _ATOM = 96, 64
#: Texts that stand side by side, and are one.
_JOINED: Final = 1_000
_EMPTY: Final = frozenset({"''", '""'})
_LINE_ENDS: Final = frozenset("\r\n")
_BITS: Final = 65_536

_SPACE: Final = re.compile(r"[ \t\f\r\n]*+")
_WITHIN_LINE: Final = re.compile(r"[ \t\f]*+")
_BLANK_LINES: Final = re.compile(r"(?:[ \t\f]*+[\r\n])*+")
_STRING: Final = (
    r"(?:[rR]?[bB]?|[bB][rR]|[uU])"
    r"(?:'''(?:[^\\']|\\.|'(?!''))*+'''|\"\"\"(?:[^\\\"]|\\.|\"(?!\"\"))*+\"\"\""
    r"|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'|\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*+\")"
)
_TOKEN: Final = re.compile(
    r"(?P<space>[ \t\f\r\n]*+)"
    r"(?:(?P<sign>[\[\](){},:])"
    r"|(?P<whole>-?(?:0|[1-9][0-9]{0,17}+)(?![\w.]))"
    r"|(?P<fraction>-?[0-9]{1,18}+\.[0-9]{1,18}+(?:[eE][-+]?[0-9]{1,3})?+(?![\w.]))"
    r"|(?P<number>[-+]?[ \t]*+(?:0[xXoObB]\w+|[\d.][\d._]*+(?:[eE][-+]?\d[\d_]*+)?[jJ]?))"
    r"|(?P<name>None\b|True\b|False\b)"
    rf"|(?P<text>{_STRING}))",
    re.DOTALL,
)
_NAMES: Final = {"None": None, "True": True, "False": False}
_OPENS: Final = {"[": "]", "(": ")", "{": "}"}


def literal_of(text: str) -> Any:
    """Return the value of a text that is a Python literal.

    Raises:
        OverflowError: its value would take more memory than a template may have.
        Exception: it is not one; whatever `ast.literal_eval` raises then.
    """
    value = ast.literal_eval(text) if len(text) <= SHORT else LongText(text).value()
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError("too long a number")
    return value


class _Open:
    """A container that is being read.

    Attributes:
        closes: the bracket at its end.
        values: what is in it so far; of a dictionary keys and values in turn.
        is_dict: whether it is a dictionary; None: nothing says so yet.
        has_comma: whether there was a comma, which makes a tuple.
    """

    __slots__ = ("closes", "has_comma", "is_dict", "values")

    def __init__(self, closes: str) -> None:
        self.closes = closes
        self.values: list[Any] = []
        self.is_dict: bool | None = None
        self.has_comma = False

    def value(self) -> Any:
        if self.closes == "]":
            return self.values
        if self.closes == "}":
            if self.values and not self.is_dict:
                return set(self.values)
            return dict(zip(self.values[::2], self.values[1::2], strict=True))
        if self.has_comma or not self.values:
            return tuple(self.values)
        return self.values[0]

    def may_close(self, *, wants_value: bool) -> bool:
        is_complete = not self.is_dict or len(self.values) % 2 == 0
        return is_complete and (not wants_value or self.has_comma or not self.values)

    def separate(self, sign: str) -> None:
        if sign == ":":
            # A colon follows each key of a dictionary, and nothing in a set.
            if self.closes != "}" or self.is_dict is False or len(self.values) % 2 == 0:
                raise ValueError("a colon")
            self.is_dict = True
        else:
            if self.is_dict is None:
                self.is_dict = False
            if self.is_dict and len(self.values) % 2:
                raise ValueError("no value")
            self.has_comma = True


class LongText:
    """A text that is read from its beginning to its end, without recursion."""

    def __init__(self, text: str) -> None:
        text = text.lstrip(" \t")
        blank = _BLANK_LINES.match(text)
        if blank and blank.end():
            text = text[blank.end() :]
            if text[:1] in {" ", "\t"}:
                raise ValueError("an indented line")
        self._text = text.rstrip("\r\n").rstrip(" \t\f")
        self._size = 0

    def value(self) -> Any:  # noqa: C901 - one branch for each kind of token
        """Return what the text says.

        Raises:
            ValueError: it is not a literal, or has what no value is printed as.
            OverflowError: it would take more than `LIMIT` bytes.
        """
        # The text itself may be a tuple without brackets.
        stack = [top := _Open("")]
        wants_value = True
        last, joined = "", 0
        for kind, token in self._tokens(stack):
            if kind != "sign":
                joined += not wants_value
                if not wants_value and not (kind == last == "text" and joined <= _JOINED):
                    raise ValueError("neither a comma nor an end")
                value = self._atom(kind, token)
                if wants_value:
                    top.values.append(value)
                else:
                    # Texts side by side are one.
                    top.values[-1] += value
                wants_value = False
            elif token in _OPENS:
                if not wants_value or len(stack) > _DEEPEST:
                    raise ValueError("too deep")
                stack.append(top := _Open(_OPENS[token]))
                self._take(_CONTAINER)
            elif token in {",", ":"}:
                if wants_value:
                    raise ValueError("no value")
                top.separate(token)
                wants_value = True
            else:
                if token != top.closes or not top.may_close(wants_value=wants_value):
                    raise ValueError("another end")
                value = stack.pop().value()
                top = stack[-1]
                top.values.append(value)
                wants_value = False
            last = kind
        if len(stack) > 1 or not top.values or (wants_value and not top.has_comma):
            raise ValueError("unfinished")
        return top.value()

    def _tokens(self, stack: list[_Open]) -> Iterator[tuple[str, str]]:
        text, at, end, match = self._text, 0, len(self._text), _TOKEN.match
        while at < end:
            found = match(text, at)
            if found is None:
                raise ValueError("no literal")
            at = found.end()
            kind = found.lastgroup or ""
            if len(stack) == 1 and found["space"] and _LINE_ENDS.intersection(found["space"]):
                raise ValueError("more than a line")
            token = found[kind]
            if token in _EMPTY and text[at : at + 1] == token[0]:
                raise ValueError("an unfinished text")
            yield kind, token

    def _take(self, size: int) -> None:
        self._size += size
        if self._size > LIMIT:
            raise OverflowError("A template's value is too large.")

    def _atom(self, kind: str, token: str) -> Any:
        self._take(_ATOM)
        if kind == "whole":
            return int(token)
        if kind == "fraction":
            return float(token)
        if kind == "name":
            return _NAMES[token]
        if kind == "text":
            # Another letter of a text takes four bytes at most.
            self._take(4 * len(token))
            if token[0] in "'\"" and "\\" not in token and "\r" not in token:
                is_long = token[:3] in {"'''", '"""'} and len(token) >= len("''''''")
                return token[3:-3] if is_long else token[1:-1]
        return ast.literal_eval(token)
