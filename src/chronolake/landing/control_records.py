"""Control records: what happened to a stream besides changes of its records.

They stand in our own raw lake between its data files, as JSON, under names of the same sequence, so
that it is known what landed before and what after. Other readers look for data files only.

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

from chronolake.errors import SourceError
from chronolake.landing.file_sequence import make_durable, publish_control, staging
from chronolake.landing.layout import rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chronolake.landing.layout import ControlFile, DataFile, ObjectFolder

_FORMAT: Final = 1


class ControlKind(StrEnum):
    """What a control record tells."""

    #: How the stream's table is kept since then: its mode, and what goes with it.
    KEPT = "kept"
    #: What tells the fields of the files after it apart, whatever they are called.
    NAMED = "named"
    #: What follows was read anew, and compared with the table.
    RESYNCED = "resynced"


@dataclass(frozen=True)
class Control:
    """A control record.

    Attributes:
        kind: what it tells.
        told: the rest, as JSON can hold it: of `KEPT` the settings, of `NAMED` the `fields` (name
            to number), of `RESYNCED` the time `at`, in microseconds since 1970.
    """

    kind: ControlKind
    told: Mapping[str, Any]


def land_control(folder: ObjectFolder, control: Control, *, guard: Callable[[], None]) -> bool:
    """Append a control record to an object of a raw lake, unless its last of that kind is the same.

    When this returns, it would survive a loss of power.

    Args:
        folder: the object.
        control: the record.
        guard: called when nobody else can let files appear; raises if this process must not either.

    Returns:
        Whether it was appended.

    Raises:
        PipelineBusyError: another process publishes files of the object, and does not finish.
        SourceError: the object is written by something else, or by a later version of Chronolake.
        Exception: what `guard` raises; nothing has been landed then.
    """
    earlier = [known for _, known in controls_of(folder) if known.kind is control.kind]
    if earlier and earlier[-1] == control:
        return False
    reported = {"format": _FORMAT, "kind": control.kind, **control.told}
    with staging(folder) as place:
        path = place / "control.json"
        path.write_bytes(orjson.dumps(reported, option=orjson.OPT_APPEND_NEWLINE))
        make_durable(path)
        publish_control(folder, path, guard=guard)
    return True


def controls_of(folder: ObjectFolder) -> list[tuple[ControlFile, Control]]:
    """An object's control records in the order of their writing.

    Raises:
        SourceError: one cannot be read, or was written by a later version of Chronolake.
    """
    return [(file, _read(file)) for file in folder.controls()]


def _read(file: ControlFile) -> Control:
    try:
        reported: dict[str, Any] = orjson.loads(file.path.read_bytes())
    except (OSError, ValueError) as failure:
        raise SourceError(
            f"The control record cannot be read: {failure}.",
            file=str(file.path),
            hint="Restore the file: without it, what it says is lost.",
        ) from failure
    if reported.pop("format", None) != _FORMAT or reported.get("kind") not in set(ControlKind):
        raise SourceError(
            "The control record is of a kind that this version of Chronolake does not know.",
            file=str(file.path),
            hint="Install the version that wrote it, or a later one.",
        )
    return Control(ControlKind(reported.pop("kind")), reported)


@dataclass(frozen=True)
class Naming:
    """How fields are called in the files after a control record.

    Attributes:
        name: of the control record: greater than those of the files before it.
        fields: each field's number, which it keeps when it gets another name, by its name.
    """

    name: str
    fields: Mapping[str, int]


@dataclass(frozen=True)
class Namings:
    """How fields of files are called by now: the namings of an object in their order.

    Attributes:
        every: the namings.
        of_others: names of fields in files that somebody else writes, and their names here.
    """

    every: tuple[Naming, ...] = ()
    of_others: tuple[tuple[str, str], ...] = ()

    @cached_property
    def now(self) -> dict[int, str]:
        """The present name of every field that ever had a number.

        A field that has gone keeps its last name, unless another one has it now.
        """
        found: dict[int, str] = {}
        taken: set[str] = set()
        for naming in reversed(self.every):
            for name, number in sorted(naming.fields.items(), key=lambda item: item[1]):
                if number not in found:
                    found[number] = f"{name}_{number}" if name in taken else name
                    taken.add(found[number])
        return found

    def before(self, file: DataFile) -> int:
        """How many of them had been when a file was written."""
        return sum(rank(one.name) < file.rank for one in self.every)

    def since(self, before: int, fields: Iterable[str]) -> dict[str, str]:
        """Of the fields of a file, those with another name by now.

        Args:
            before: how many namings had been when it was written.
            fields: the fields by their names in the file.
        """
        then = self.every[before - 1].fields if before else {}
        now = {name: self.now[then[name]] for name in fields if name in then}
        return {name: other for name, other in now.items() if name != other}


def namings_of(folder: ObjectFolder) -> Namings:
    """How the fields of an object were called.

    Raises:
        SourceError: a control record cannot be read.
    """
    return Namings(
        tuple(
            Naming(file.name, control.told["fields"])
            for file, control in controls_of(folder)
            if control.kind is ControlKind.NAMED
        )
    )
