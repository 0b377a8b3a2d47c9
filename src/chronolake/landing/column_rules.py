"""Columns that are excluded, hashed or masked before anything of them is stored (`columns`).

Sources that store values before they land (the spool of a log, pages of an API, fingerprints) apply
the rules themselves, and mark their batches as protected. `pipeline.protected_columns` applies them
to all other batches.

A hash is the HMAC-SHA256 of a value's canonical text in UTF-8, with 64 hexadecimal digits. Equal
values have equal texts, whatever the types of their columns: `5` for 5, 5.0 and 5.00. Arrow has no
hash functions, so each distinct value of a batch is hashed by OpenSSL.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace
from enum import StrEnum
from glob import escape
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.config import is_pattern, matches
from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.landing.encoding import texts_of
from chronolake.types import Column, ColumnType, Kind, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chronolake.config import ColumnSettings, PipelineConfig

_TEXT: Final = ColumnType(Kind.STRING)
#: Up to here, all whole numbers are different floating-point numbers.
_EXACT: Final = float(2**53)
#: The block size of SHA-256, and the bytes that HMAC (RFC 2104) combines with the key.
_BLOCK_BYTES: Final = 64
_INNER: Final = 0x36
_OUTER: Final = 0x5C
#: What is hashed for the digest of rules: it depends on the key, and does not reveal it.
_DIGEST_OF: Final = "chronolake column rules "


class Action(StrEnum):
    """What happens to a column's values."""

    EXCLUDE = "exclude"
    MASK = "mask"
    HASH = "hash"


@dataclass(frozen=True)
class Rule:
    """The rule of one column.

    Attributes:
        action: what happens to its values.
        text: the text that replaces masked values; None: null.
    """

    action: Action
    text: str | None = None

    def type_of(self, kind: ColumnType) -> ColumnType:
        """Return the type of the stored values."""
        is_text = self.action is Action.HASH or self.text is not None
        return _TEXT if is_text else kind


@dataclass(frozen=True)
class _Level:
    """The rules of one section of chronolake.yml, by name or pattern; None: no rule."""

    rules: tuple[tuple[str, Rule | None], ...]

    @classmethod
    def of(cls, settings: ColumnSettings) -> Self:
        """Return the rules of a section; the strictest of a column's rules is the first."""
        rules = [
            *((pattern, Rule(Action.EXCLUDE)) for pattern in settings.exclude),
            *((pattern, Rule(Action.MASK, text)) for pattern, text in settings.masks.items()),
            *((pattern, Rule(Action.HASH)) for pattern in settings.hash),
        ]
        return cls(tuple(rules))

    def find(self, name: str) -> tuple[Rule | None] | None:
        """Return the first rule that matches a column; None: nothing matches it."""
        return next(((rule,) for pattern, rule in self.rules if matches(name, pattern)), None)


@dataclass(frozen=True)
class ColumnRules:
    """The rules of a stream's columns; they are sent to executors.

    Attributes:
        levels: the rules of the stream, and those of its pipeline.
        key: the key of hashes.
        is_own: whether the first of `levels` are rules of the stream.
    """

    levels: tuple[_Level, ...] = ()
    key: bytes = field(default=b"", repr=False)
    is_own: bool = False

    @classmethod
    def of(cls, pipeline: PipelineConfig, stream: str) -> Self:
        """Return the rules of a stream."""
        own = pipeline.streams.get(stream)
        sections = [pipeline.columns] if own is None else [own.columns, pipeline.columns]
        levels = tuple(filter(lambda level: level.rules, map(_Level.of, sections)))
        key = next((section.hash_key for section in sections if section.hash_key), "")
        is_own = own is not None and bool(_Level.of(own.columns).rules)
        return cls(levels, key.encode() if levels else b"", is_own)

    def renamed(self, names: Mapping[str, str]) -> ColumnRules:
        """Return the rules for columns that were renamed before the rules apply.

        Args:
            names: the new names of columns, by their names in the source.
        """
        if not self:
            return self
        by_new_name = _Level(
            tuple((escape(now), self.rule_of(name)) for name, now in names.items())
        )
        return replace(self, levels=(by_new_name, *self.levels), is_own=False)

    def __bool__(self) -> bool:
        """Return whether there are any rules."""
        return bool(self.levels)

    @property
    def digest(self) -> str:
        """Return a text that changes with the rules and with the key; empty without rules."""
        if not self:
            return ""
        return hmac.digest(self.key, f"{_DIGEST_OF}{self.levels!r}".encode(), "sha256").hex()[:32]

    def digest_of(self, names: Iterable[str]) -> str:
        """Return a text that changes with the rules of columns; empty if they have none."""
        found = [(name, rule) for name in names if (rule := self.rule_of(name)) is not None]
        if not found:
            return ""
        return hmac.digest(self.key, f"{_DIGEST_OF}{found!r}".encode(), "sha256").hex()[:32]

    def rule_of(self, name: str) -> Rule | None:
        """Return the rule of a column, by its name in the source; None: it is stored as it is."""
        found = (level.find(name) for level in self.levels)
        return next((match[0] for match in found if match is not None), None)

    def is_removed(self, name: str) -> bool:
        """Return whether a column's values are not stored in any form."""
        rule = self.rule_of(name)
        return rule is not None and rule.action is not Action.HASH

    def is_excluded(self, name: str) -> bool:
        """Return whether a column is not stored."""
        rule = self.rule_of(name)
        return rule is not None and rule.action is Action.EXCLUDE

    def is_hashed(self, name: str) -> bool:
        """Return whether a column's values are hashed."""
        rule = self.rule_of(name)
        return rule is not None and rule.action is Action.HASH

    def columns(self, columns: Iterable[Column]) -> list[Column]:
        """Return the stored columns, with the types of the stored values."""
        found = ((column, self.rule_of(column.name)) for column in columns)
        return [
            column if rule is None else replace(column, type=rule.type_of(column.type))
            for column, rule in found
            if rule is None or rule.action is not Action.EXCLUDE
        ]

    def expect_stored(self, key: Iterable[str], *, place: str) -> None:
        """Raise if a column of the key is excluded or masked.

        Args:
            key: the columns that identify a record.
            place: the stream's path in chronolake.yml, for the message.

        Raises:
            ConfigurationError: records could not be distinguished.
        """
        self._expect_none(
            key,
            place,
            "it identifies the stream's records",
            "Hash it instead: records with equal hashes are the same.",
            self.is_removed,
        )

    def expect_plain(self, names: Iterable[str], *, place: str, reason: str) -> None:
        """Raise if a column has a rule, because its values are stored elsewhere.

        Raises:
            ConfigurationError: a column has a rule.
        """
        self._expect_none(
            names,
            place,
            reason,
            "Leave it out of these settings. A pattern of the pipeline can be replaced by names.",
            lambda name: self.rule_of(name) is not None,
        )

    def expect_known(self, columns: Sequence[str], *, place: str) -> None:
        """Raise if a rule of the stream names a column that does not exist.

        Args:
            columns: the names of all columns in the source.
            place: the stream's path in chronolake.yml, for the message.

        Raises:
            ConfigurationError: the stream does not have such a column.
        """
        for name, rule in self.levels[0].rules if self.is_own else ():
            if rule is not None:
                expect_column(name, columns, setting=f"{place}.columns.{rule.action}")

    def _expect_none(
        self,
        names: Iterable[str],
        place: str,
        reason: str,
        hint: str,
        is_refused: Callable[[str], bool],
    ) -> None:
        for name in names:
            rule = self.rule_of(name)
            if rule is not None and is_refused(name):
                raise ConfigurationError(
                    f"{place}: the column {name} cannot be in columns.{rule.action}: {reason}.",
                    column=name,
                    hint=hint,
                )

    def protect(self, name: str, values: pa.Array, kind: ColumnType) -> pa.Array:
        """Return a column's values as they are stored; the column is not excluded."""
        rule = self.rule_of(name)
        if rule is None:
            return values
        if rule.action is Action.HASH:
            return keyed_hashes(canonical_texts(values, kind), self.key)
        if rule.text is None:
            return pa.nulls(len(values), values.type)
        return pa.repeat(rule.text, len(values))

    def protect_columns(
        self, columns: Sequence[Column], arrays: Sequence[pa.Array]
    ) -> tuple[list[Column], list[pa.Array]]:
        """Return columns and their values as they are stored."""
        if not self:
            return [*columns], [*arrays]
        stored = self.columns(columns)
        both = zip(columns, arrays, strict=True)
        values = {column.name: (array, column.type) for column, array in both}
        return stored, [self.protect(column.name, *values[column.name]) for column in stored]

    def keyed_hash(self, value: bytes) -> str:
        """Return the hash of one value."""
        return hmac.digest(self.key, value, "sha256").hex()


def keyed_hashes(texts: pa.Array, key: bytes) -> pa.Array:
    """Return the HMAC-SHA256 of texts, or of bytes, in hexadecimal digits; null of null."""
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    distinct = texts.dictionary_encode()
    values = distinct.dictionary.cast(pa.large_binary()).to_pylist()
    # Copies of two started hashes take half the time of `hmac.digest`.
    block = (key if len(key) <= _BLOCK_BYTES else sha256(key).digest()).ljust(_BLOCK_BYTES, b"\0")
    inner = sha256(bytes(byte ^ _INNER for byte in block))
    outer = sha256(bytes(byte ^ _OUTER for byte in block))

    def digest(value: bytes) -> str:
        first, second = inner.copy(), outer.copy()
        first.update(value)
        second.update(first.digest())
        return second.hexdigest()

    return pa.array(map(digest, values), pa.string()).take(distinct.indices)


def canonical_texts(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return the texts, or bytes, that are hashed for the values of a column.

    Equal values have equal texts. Numbers have no superfluous zeros; a number without a fraction is
    written as an integer. Times and dates are written as landing files have them
    (`encoding.texts_of`), and bytes are hashed as they are.
    """
    values = values.cast(kind.arrow)
    match kind.kind:
        case Kind.BINARY:
            return values
        case Kind.DECIMAL:
            texts = texts_of(values, kind.kind)
            has_fraction = pc.match_substring(texts, ".")
            trimmed = pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")
            return pc.if_else(has_fraction, trimmed, texts)
        case Kind.FLOAT | Kind.DOUBLE:
            is_whole = pc.and_(
                pc.equal(values, pc.round(values)), pc.less_equal(pc.abs(values), _EXACT)
            )
            whole = pc.if_else(is_whole, values, pa.scalar(None, values.type)).cast(pa.int64())
            return pc.if_else(is_whole, whole.cast(pa.string()), texts_of(values, kind.kind))
        case _:
            return texts_of(values, kind.kind)


@dataclass(frozen=True)
class Protection:
    """A step that replaces the values of columns; it is sent to executors.

    Attributes:
        rules: the rules of the stream.
        columns: the source's columns. Excluded ones are removed, other columns stay unchanged.
        texts: for some columns, another one with values that the column's type cannot hold.
    """

    rules: ColumnRules
    columns: tuple[Column, ...]
    texts: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield rows as they are stored."""
        changed = {
            column.name: rule
            for column in self.columns
            if (rule := self.rules.rule_of(column.name)) is not None
        }
        kinds = {column.name: column.type for column in self.columns}
        dropped = self.dropped
        for batch in batches:
            cells = {}
            for name in batch.schema.names:
                if name in dropped:
                    continue
                values = batch[name]
                if name in changed:
                    values = self.rules.protect(name, values, kinds[name])
                    if changed[name].action is Action.HASH and name in self.texts:
                        texts = keyed_hashes(batch[self.texts[name]], self.rules.key)
                        values = pc.coalesce(texts, values)
                cells[name] = values
            yield pa.RecordBatch.from_pydict(cells)

    @property
    def dropped(self) -> set[str]:
        """Return the columns that the result does not have."""
        excluded = {
            column.name
            for column in self.columns
            if (rule := self.rules.rule_of(column.name)) and rule.action is Action.EXCLUDE
        }
        texts = {text for name, text in self.texts.items() if self.rules.rule_of(name) is not None}
        return excluded | texts

    @property
    def stored_columns(self) -> list[Column]:
        """Return the stored columns."""
        return self.rules.columns(self.columns)

    @property
    def stored_texts(self) -> dict[str, str]:
        """Return `texts` without those of columns with a rule."""
        return {name: text for name, text in self.texts.items() if self.rules.rule_of(name) is None}

    def ddl(self, names: Sequence[str], types: Mapping[str, str]) -> str:
        """Return the columns of the result, as a Spark schema.

        Args:
            names: the names of the step's input.
            types: their SQL types.
        """
        stored = {column.name: column.type.sql for column in self.stored_columns}
        changed = {name for name in stored if self.rules.rule_of(name) is not None}
        return ", ".join(
            f"{quote(name)} {stored[name] if name in changed else types[name]}"
            for name in names
            if name not in self.dropped
        )


def expect_column(name: str, columns: Sequence[str], *, setting: str) -> None:
    """Raise if a stream does not have a column that a setting names; patterns need not match.

    Args:
        name: the name, or a pattern of names.
        columns: the names of all columns in the source.
        setting: the setting's path in chronolake.yml, for the message.

    Raises:
        ConfigurationError: the stream does not have such a column.
    """
    if not is_pattern(name) and name.casefold() not in {each.casefold() for each in columns}:
        raise ConfigurationError(
            f"{setting}: the stream has no column {name!r}.",
            hint=did_you_mean(name, columns, f"It has: {', '.join(columns)}."),
        )
