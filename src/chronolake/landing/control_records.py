"""Control records: events of a stream other than changes of its records.

They are stored in our own raw lake between its data files, as JSON, with names of the same
sequence, so that it is known which files landed before and after. Other readers use data files
only.

```
parquet/v2/org=X/object=Account/batch=05e0be100/control-16f5e66e801.json
```
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import ObjectStoreError, SourceError
from chronolake.landing.encoding import DECLARING
from chronolake.landing.file_sequence import publish_control
from chronolake.landing.layout import rank
from chronolake.landing.writer import encode_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chronolake.landing.layout import ControlFile, DataFile, ObjectFolder

_FORMAT: Final = 1
#: Metadata of the data file without rows that has the number of a record in a bucket: the record.
_RECORD: Final = b"chronolake.control"


class ControlKind(StrEnum):
    """The kinds of control records."""

    #: The settings of the stream's table since then: its mode, and related ones.
    KEPT = "kept"
    #: The numbers that identify the fields of the files after it, whatever their names are.
    NAMED = "named"
    #: The following rows were read again completely, and compared with the table.
    RESYNCED = "resynced"


@dataclass(frozen=True)
class Control:
    """A control record.

    Attributes:
        kind: its kind.
        content: the rest, as JSON values: for `KEPT` the settings, for `NAMED` the `fields` (name
            to number), for `RESYNCED` the time `at`, in microseconds since 1970.
    """

    kind: ControlKind
    content: Mapping[str, Any]


def land_control(folder: ObjectFolder, control: Control, *, guard: Callable[[], None]) -> bool:
    """Append a control record to an object, unless its last record of that kind is equal.

    The record is durable on return.

    Args:
        folder: the object.
        control: the record.
        guard: called while no other process can publish files; raises if this process must not
            either.

    Returns:
        Whether it was appended.

    Raises:
        PipelineBusyError: another process is publishing files of the object, and does not finish.
        SourceError: the object is written by another program, or by a later version of Chronolake.
        Exception: any error of `guard`; nothing has landed.
    """
    earlier = [known for _, known in controls_of(folder) if known.kind is control.kind]
    if earlier and earlier[-1] == control:
        return False
    reported = {"format": _FORMAT, "kind": control.kind, **control.content}
    content = orjson.dumps(reported, option=orjson.OPT_APPEND_NEWLINE)
    placeholder = encode_file(DECLARING.empty_table(), b"", metadata={_RECORD: content})
    publish_control(folder, content, placeholder, guard=guard)
    return True


def controls_of(folder: ObjectFolder) -> list[tuple[ControlFile, Control]]:
    """Return an object's control records in the order in which they were written.

    Raises:
        SourceError: a record cannot be read, or was written by a later version of Chronolake.
    """
    return [(file, _read(file)) for file in folder.controls()]


def _read(file: ControlFile) -> Control:
    try:
        reported: dict[str, Any] = orjson.loads(file.path.read_bytes())
    except (OSError, ValueError, ObjectStoreError) as failure:
        raise SourceError(
            f"The control record cannot be read: {failure}.",
            file=str(file.path),
            hint="Restore the file: its content is not stored anywhere else.",
        ) from failure
    if reported.pop("format", None) != _FORMAT or reported.get("kind") not in set(ControlKind):
        raise SourceError(
            "This version of Chronolake does not know the control record's kind.",
            file=str(file.path),
            hint="Install the version of Chronolake that wrote the file, or a later one.",
        )
    return Control(ControlKind(reported.pop("kind")), reported)


@dataclass(frozen=True)
class Naming:
    """The names of fields in the files after a control record.

    Attributes:
        name: the control record's name, greater than the names of the files before it.
        fields: each field's number by its name; the number stays the same if the field is renamed.
    """

    name: str
    fields: Mapping[str, int]


@dataclass(frozen=True)
class Namings:
    """The names of an object's fields over time: its namings in their order.

    Attributes:
        every: the namings.
        of_others: names of fields in files from other writers, and their names here.
    """

    every: tuple[Naming, ...] = ()
    of_others: tuple[tuple[str, str], ...] = ()

    @cached_property
    def now(self) -> dict[int, str]:
        """Return the current name of every field that ever had a number.

        A removed field keeps its last name, unless another field has it now.
        """
        found: dict[int, str] = {}
        used_names: set[str] = set()
        for naming in reversed(self.every):
            for name, number in sorted(naming.fields.items(), key=lambda item: item[1]):
                if number not in found:
                    found[number] = f"{name}_{number}" if name in used_names else name
                    used_names.add(found[number])
        return found

    def before(self, file: DataFile) -> int:
        """Return the number of namings from before a file was written."""
        return sum(rank(naming.name) < file.rank for naming in self.every)

    def since(self, before: int, fields: Iterable[str]) -> dict[str, str]:
        """Return the fields of a file that have been renamed since, with their current names.

        Args:
            before: number of namings from before the file was written.
            fields: the fields by their names in the file.
        """
        then = self.every[before - 1].fields if before else {}
        now = {name: self.now[then[name]] for name in fields if name in then}
        return {name: other for name, other in now.items() if name != other}


def namings_of(folder: ObjectFolder) -> Namings:
    """Return the names of an object's fields over time.

    Raises:
        SourceError: a control record cannot be read.
    """
    return Namings(
        tuple(
            Naming(file.name, control.content["fields"])
            for file, control in controls_of(folder)
            if control.kind is ControlKind.NAMED
        )
    )
