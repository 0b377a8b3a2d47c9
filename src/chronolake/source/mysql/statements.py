"""Statements in the binary log: which tables they change without row events.

A statement that defines data is logged as text. So is any statement that changes rows in a session
without `binlog_format=ROW`. Nothing here executes statements: what a statement does to a table is
only followed where that is certain, and the table is read again otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from chronolake.source.mysql.catalog import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_PARTS: Final = r"""
    (?P<space>\s+|--[ \t\r\n][^\n]*|--$|\#[^\n]*)
    |(?P<executed>/\*M?!\d*|\*/)
    |(?P<comment>/\*.*?(?:\*/|$))
    |`(?P<back>(?:[^`]|``)*)`
    |"(?P<double>(?:[^"{escape}]|""{escaped})*)"
    |(?P<single>[A-Za-z_0-9]*'(?:[^'{escape}]|''{escaped})*')
    |(?P<word>[\w$]+)
    |(?P<other>.)
    """
_FLAGS: Final = re.VERBOSE | re.DOTALL
_WITH_ESCAPES: Final = re.compile(_PARTS.format(escape=r"\\", escaped=r"|\\."), _FLAGS)
_WITHOUT_ESCAPES: Final = re.compile(_PARTS.format(escape="", escaped=""), _FLAGS)
#: Statements that change neither the rows nor the columns of tables.
_HARMLESS: Final = frozenset(
    {
        *("ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "FLUSH", "GRANT", "REVOKE", "SET", "USE"),
        *("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "INSTALL", "UNINSTALL"),
    }
)
#: ANALYZE FORMAT = JSON precedes the statement that is executed.
_OPTIONS_OF_ANALYZE: Final = 6
_DATA: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO"})
_OF_ONE_TABLE: Final = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
#: Words between the verb of these statements and the table.
_BEFORE_TABLE: Final = frozenset(
    {"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "INTO", "FROM"}
)
#: What CREATE, ALTER and DROP can define other than tables.
_OTHER_OBJECTS: Final = frozenset(
    {
        *("VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "USER", "ROLE", "SERVER", "INDEX"),
        *("PACKAGE", "SEQUENCE", "LOGFILE", "TABLESPACE", "SPATIAL", "RESOURCE", "TEMPORARY"),
    }
)
_MODIFIERS: Final = frozenset(
    {
        *("OR", "REPLACE", "ALGORITHM", "UNDEFINED", "MERGE", "TEMPTABLE", "DEFINER", "SQL"),
        *("SECURITY", "INVOKER", "UNIQUE", "FULLTEXT", "ONLINE", "OFFLINE", "IGNORE", "AGGREGATE"),
    }
)
#: Words at the begin of an action of ALTER TABLE that changes neither rows nor columns.
_HARMLESS_ADDITIONS: Final = frozenset(
    {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "CONSTRAINT"}
)
#: What ALTER TABLE can drop other than columns.
_OTHER_DROPS: Final = frozenset(
    {"INDEX", "KEY", "FOREIGN", "CHECK", "CONSTRAINT", "PRIMARY", "PARTITION"}
)
_DROPS_THAT_MATTER: Final = frozenset({"PRIMARY", "PARTITION", "FOREIGN", "CONSTRAINT"})
_HARMLESS_OPTIONS: Final = frozenset(
    {
        *("COMMENT", "AUTO_INCREMENT", "ALGORITHM", "LOCK", "ROW_FORMAT", "FORCE"),
        *("KEY_BLOCK_SIZE", "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES"),
        *("ENABLE", "DISABLE", "COMPRESSION", "ENCRYPTION", "CHECKSUM", "ORDER", "VALIDATE"),
    }
)
#: Engines that keep the rows of a table that gets them.
_ENGINES: Final = frozenset({"INNODB", "MYISAM", "ARIA", "ROCKSDB", "MEMORY", "ARCHIVE"})
#: Types whose columns are null in all rows when they are added without other attributes.
_TYPES: Final = frozenset(
    {
        *("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "BOOL", "BOOLEAN"),
        *("DECIMAL", "DEC", "NUMERIC", "FIXED", "FLOAT", "DOUBLE", "REAL", "BIT", "YEAR"),
        *("DATE", "TIME", "DATETIME", "CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT"),
        *("LONGTEXT", "BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"),
        *("ENUM", "SET", "JSON", "GEOMETRY", "POINT", "LINESTRING", "POLYGON", "VECTOR"),
    }
)
#: A column of this type is only null if that is written: it may get the current time by default.
_TIMESTAMP: Final = "TIMESTAMP"
_ATTRIBUTES: Final = frozenset(
    {"UNSIGNED", "SIGNED", "ZEROFILL", "NULL", "PRECISION", "VARYING", "FIRST"}
)
#: Attributes that are followed by one operand.
_WITH_OPERAND: Final = frozenset({"COLLATE", "CHARSET", "COMMENT", "AFTER"})


class Effect(StrEnum):
    """What a statement does to a table."""

    #: All rows were removed.
    TRUNCATED = "truncated"
    #: Rows or columns have changed in a way that no row event describes.
    CHANGED = "changed"
    #: Columns were added that are null in all rows, dropped or renamed; nothing else has changed.
    COLUMNS = "columns"
    #: Values that columns have in later rows, if an insert does not name them.
    DEFAULTS = "defaults"


@dataclass(frozen=True)
class TableEffect:
    """What a statement does to a table.

    Attributes:
        effect: the kind of change.
        renamed: for `COLUMNS`, the old and the new name of each renamed column.
        added: the added ones.
        dropped: the dropped ones.
    """

    effect: Effect
    renamed: tuple[tuple[str, str], ...] = ()
    added: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Token:
    """A part of a statement.

    Attributes:
        text: a word, a quoted name without its quotes, or another character.
        is_name: whether it can be a name.
        is_quoted: whether it was quoted.
    """

    text: str
    is_name: bool = False
    is_quoted: bool = False

    def is_word(self, *words: str) -> bool:
        """Return whether it is one of some words, which are given in upper case."""
        return not self.is_quoted and self.text.upper() in words


@dataclass(frozen=True)
class Statement:
    """A statement in the log.

    Attributes:
        schema: the session's default database.
        tokens: its parts.
    """

    schema: str
    tokens: tuple[Token, ...]

    @classmethod
    def of(
        cls, query: str, schema: str, *, has_ansi_quotes: bool = False, has_escapes: bool = True
    ) -> Statement:
        """Return a statement.

        Args:
            query: its text.
            schema: the session's default database.
            has_ansi_quotes: whether double quotes enclose names.
            has_escapes: whether a backslash in a text escapes the character after it.
        """
        pattern = _WITH_ESCAPES if has_escapes else _WITHOUT_ESCAPES
        found = _tokens(pattern.finditer(query), has_ansi_quotes=has_ansi_quotes)
        return cls(schema, tuple(found))

    @property
    def verb(self) -> str:
        """Return its first word, in upper case."""
        return self.tokens[0].text.upper() if self.tokens else ""

    @property
    def changes_data(self) -> bool:
        """Return whether it changes rows, so that its transaction ends with a commit."""
        return self.verb in _DATA

    def effect_on(self, schema: str, table: str) -> TableEffect | None:
        """Return what the statement does to a table, or None if it does not change it.

        Rows that are changed by a statement without row events may belong to any table: to one of
        a view or a trigger, for example.
        """
        inner = self._inner()
        if inner is not None:
            return inner.effect_on(schema, table)
        if self.changes_data:
            return None if self._is_of_server() else TableEffect(Effect.CHANGED)
        if self.verb in _HARMLESS or not self._mentions(schema, table):
            return None
        return self._definition(schema, table)

    def _definition(self, schema: str, table: str) -> TableEffect | None:
        """Return the effect of a statement that defines data on a table that it mentions."""
        words = [token for token in self.tokens[1:] if not token.is_word(*_MODIFIERS)]
        first = words[0] if words else Token("")
        if self.verb == "TRUNCATE":
            target, _ = self._target(1 + first.is_word("TABLE"))
            return _for_certain(TableEffect(Effect.TRUNCATED), target, (schema, table))
        if self.verb in {"CREATE", "ALTER", "DROP"} and first.is_word(*_OTHER_OBJECTS):
            return None
        if self.verb == "ALTER" and first.is_word("TABLE"):
            return self._alteration(schema, table)
        if self.verb == "CREATE" and first.is_word("TABLE"):
            return self._creation(schema, table)
        return TableEffect(Effect.CHANGED)

    def _creation(self, schema: str, table: str) -> TableEffect | None:
        """Return the effect of CREATE TABLE on a table that it mentions."""
        place = self._after_table()
        if self.tokens[place : place + 1] and self.tokens[place].is_word("IF"):
            # A table that is read exists: the statement that dropped it would have been read.
            return None
        target, _ = self._target(place)
        return _for_certain(TableEffect(Effect.CHANGED), target, (schema, table))

    def _after_table(self) -> int:
        """Return the number of the token after the word TABLE."""
        return 1 + next(n for n, token in enumerate(self.tokens) if token.is_word("TABLE"))

    def _is_of_server(self) -> bool:
        """Return whether rows of the server's own tables are changed, which have no triggers.

        Services in the cloud write heartbeats to such tables, with statements.
        """
        place = 1
        while place < len(self.tokens) and self.tokens[place].is_word(*_BEFORE_TABLE):
            place += 1
        (schema, _), _ = self._target(place)
        return self.verb in _OF_ONE_TABLE and schema.lower() in SYSTEM

    def _inner(self) -> Statement | None:
        """Return the statement that this one executes.

        It is the one after SET STATEMENT ... FOR, or after ANALYZE (in MariaDB).
        """
        if self.verb == "ANALYZE":
            for place, token in enumerate(self.tokens[:_OPTIONS_OF_ANALYZE]):
                if token.is_word(*_DATA):
                    return Statement(self.schema, self.tokens[place:])
        if self.verb == "SET" and self.tokens[1:] and self.tokens[1].is_word("STATEMENT"):
            for place, token in enumerate(self.tokens):
                if token.is_word("FOR"):
                    return Statement(self.schema, self.tokens[place + 1 :])
        return None

    def _target(self, place: int) -> tuple[tuple[str, str], int]:
        """Return the table whose name begins at a token, and the number of the token after it."""
        name = self.tokens[place].text if place < len(self.tokens) else ""
        schema, place = self.schema, place + 1
        if place + 1 < len(self.tokens) and self.tokens[place].text == ".":
            schema, name, place = name, self.tokens[place + 1].text, place + 2
        return (schema, name), place

    def _mentions(self, schema: str, table: str) -> bool:
        """Return whether the name of a table occurs, possibly as that of something else."""
        names = [token.text.lower() if token.is_name else token.text for token in self.tokens]
        for place, name in enumerate(names):
            if name != table.lower() or not self.tokens[place].is_name:
                continue
            if names[place + 1 : place + 2] == ["."]:
                # It is the database of the name after it.
                continue
            is_qualified = place > 1 and names[place - 1] == "."
            found = names[place - 2] if is_qualified else self.schema.lower()
            if found == schema.lower():
                return True
        return self.verb == "DROP" and self._names_schema(schema)

    def _names_schema(self, schema: str) -> bool:
        return (
            len(self.tokens) > 2  # noqa: PLR2004 - a verb, DATABASE and a name
            and self.tokens[1].is_word("DATABASE", "SCHEMA")
            and any(token.text.lower() == schema.lower() for token in self.tokens[2:])
        )

    def _alteration(self, schema: str, table: str) -> TableEffect | None:
        """Return the effect of ALTER TABLE on a table that it mentions."""
        place = self._after_table()
        while place < len(self.tokens) and self.tokens[place].is_word("IF", "EXISTS"):
            place += 1
        target, place = self._target(place)
        if place < len(self.tokens) and self.tokens[place].is_word("WAIT", "NOWAIT"):
            place += 1 + self.tokens[place].is_word("WAIT")
        actions = list(self._actions(place))
        if not _is_alike(target, (schema, table)):
            return TableEffect(Effect.CHANGED) if any(map(_takes_name, actions)) else None
        if any(token.is_word("IGNORE") for token in self.tokens[:place]):
            # A unique index removes the rows that it does not admit.
            return TableEffect(Effect.CHANGED)
        return _for_certain(_effect_of(actions), target, (schema, table))

    def _actions(self, place: int) -> Iterator[list[Token]]:
        """Return the parts of an ALTER TABLE after its table, between commas."""
        depth, action = 0, list[Token]()
        for token in self.tokens[place:]:
            if token.text == "," and depth == 0 and not token.is_quoted:
                yield action
                action = []
                continue
            if not token.is_quoted:
                depth += {"(": 1, ")": -1}.get(token.text, 0)
            action.append(token)
        yield action


def _is_alike(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether the names of two tables are equal except for case."""
    return tuple(map(str.lower, one)) == tuple(map(str.lower, other))


def _for_certain(
    effect: TableEffect | None, target: tuple[str, str], table: tuple[str, str]
) -> TableEffect | None:
    """Return an effect on a table, if it is the target of a statement, or maybe is.

    Whether names that differ in case are those of one table depends on the server.
    """
    if effect is None or not _is_alike(target, table):
        return None
    return effect if target == table else TableEffect(Effect.CHANGED)


def _upper(token: Token) -> str:
    return "" if token.is_quoted else token.text.upper()


def _effect_of(actions: Sequence[Sequence[Token]]) -> TableEffect | None:
    """Return the effect of the actions of ALTER TABLE on their table."""
    renamed, added, dropped, has_defaults = [], [], [], False
    for action in actions:
        names = _renaming(action)
        if names is not None:
            renamed.append(names)
        elif (name := _dropped(action)) is not None:
            dropped.append(name)
        elif (name := _added(action)) is not None:
            added.append(name)
        elif action and action[0].is_word("ALTER"):
            has_defaults = True
        elif not _is_harmless(action):
            return TableEffect(Effect.CHANGED)
    if renamed or added or dropped:
        return TableEffect(Effect.COLUMNS, tuple(renamed), tuple(added), tuple(dropped))
    return TableEffect(Effect.DEFAULTS) if has_defaults else None


def _takes_name(action: Sequence[Token]) -> bool:
    """Return whether an action gives a table the name or the rows of another one."""
    if not action:
        return False
    is_rename = action[0].is_word("RENAME") and not any(
        token.is_word("COLUMN", "INDEX", "KEY") for token in action[1:2]
    )
    return is_rename or action[0].is_word("EXCHANGE")


def _renaming(action: Sequence[Token]) -> tuple[str, str] | None:
    """Return the old and the new name of a column that an action only renames."""
    words = [token for token in action if not token.is_word("IF", "EXISTS")]
    is_renaming = (
        len(words) == 5  # noqa: PLR2004 - RENAME COLUMN old TO new
        and words[0].is_word("RENAME")
        and words[1].is_word("COLUMN")
        and words[3].is_word("TO", "AS")
    )
    return (words[2].text, words[4].text) if is_renaming else None


def _operands(action: Sequence[Token]) -> tuple[list[Token], bool]:
    """Return the words of an action after its verb, and whether it names a column for certain."""
    words = list(action[1:])
    is_column = bool(words) and words[0].is_word("COLUMN")
    words = words[is_column:]
    if words and words[0].is_word("IF"):
        words = words[2 + any(token.is_word("NOT") for token in words[1:2]) :]
    return words, is_column


def _dropped(action: Sequence[Token]) -> str | None:
    """Return the column that an action drops, or None if it does something else."""
    rest, is_column = _operands(action)
    if not action or not action[0].is_word("DROP") or not rest:
        return None
    if not is_column and rest[0].is_word(*_OTHER_DROPS):
        return None
    return rest[0].text


def _added(action: Sequence[Token]) -> str | None:
    """Return the column that an action adds if it is null in all rows, or None."""
    rest, is_column = _operands(action)
    if not action or not action[0].is_word("ADD") or not rest or rest[0].text == "(":
        return None
    if not is_column and rest[0].is_word("PRIMARY", "PARTITION", *_HARMLESS_ADDITIONS):
        return None
    return rest[0].text if _is_null(rest[1:]) else None


def _is_null(definition: Sequence[Token]) -> bool:
    """Return whether a column that is added with a definition is certainly null in all rows."""
    words = [*map(_upper, definition)]
    if not words or (words[0] not in _TYPES and (words[0] != _TIMESTAMP or "NULL" not in words)):
        return False
    place = 1
    while place < len(words):
        if words[place] == "(":
            while place < len(words) and words[place] != ")":
                place += 1
            place += 1
        elif words[place] in _ATTRIBUTES:
            place += 1
        elif words[place] in _WITH_OPERAND or words[place : place + 2] == ["DEFAULT", "NULL"]:
            place += 2
        elif words[place : place + 2] == ["CHARACTER", "SET"]:
            place += 3
        else:
            return False
    return True


def _is_harmless(action: Sequence[Token]) -> bool:
    """Return whether an action of ALTER TABLE changes neither values nor columns."""
    rest, is_column = _operands(action)
    if action and action[0].is_word("ENGINE"):
        return any(token.text.upper() in _ENGINES for token in rest[:2])
    if not action or action[0].is_word(*_HARMLESS_OPTIONS) or not rest:
        return True
    verb = action[0].text.upper()
    if verb == "ADD" and not is_column and rest[0].is_word(*_HARMLESS_ADDITIONS):
        # A primary key may be a constraint with a name.
        return not any(token.is_word("PRIMARY") for token in action)
    if verb == "DROP":
        # The catalog does not have the foreign key any more by which rows were changed before.
        return rest[0].is_word(*_OTHER_DROPS) and not rest[0].is_word(*_DROPS_THAT_MATTER)
    return verb == "RENAME" and rest[0].is_word("INDEX", "KEY")


def _tokens(matches: Iterable[re.Match[str]], *, has_ansi_quotes: bool) -> Iterator[Token]:
    for found in matches:
        kind = found.lastgroup
        if kind in {"space", "comment", "executed"}:
            continue
        text = found[kind or 0]
        if kind == "back":
            yield Token(text.replace("``", "`"), is_name=True, is_quoted=True)
        elif kind == "double":
            yield Token(text.replace('""', '"'), is_name=has_ansi_quotes, is_quoted=True)
        elif kind == "single":
            yield Token(text, is_quoted=True)
        else:
            yield Token(text, is_name=kind == "word")
