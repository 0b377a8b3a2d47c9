"""The raw lake: record versions in Parquet files, appended and never changed.

Source: `seeds/data-lake-v2.txt`. Files have one schema each, hold rows of many versions in any
order, repeat some, and have names that only increase. `layout` knows where they are, `fields` what
their columns mean, `forms` which type holds the values of a field, and `reading` makes record
versions (`chronolake.changes`) of them. `writing` lands versions in a raw lake of our own, where
`naming` lets files appear, `declared` says in their footers what their columns are, `control` tells
what happened besides, and `erasing` takes what purged records said out of them. `bad_file` says
which files cannot be read.
"""

from chronolake.rawlake.bad_file import (
    QUARANTINED_PROPERTY,
    BadFile,
    Quarantine,
    bad_files_in,
    naming_bad_files,
    refuse,
)
from chronolake.rawlake.control import (
    Control,
    ControlKind,
    Namings,
    controls_of,
    land_control,
    namings_of,
)
from chronolake.rawlake.erasing import erase, purges_in
from chronolake.rawlake.fields import Field
from chronolake.rawlake.footers import landed_micros, rows_in
from chronolake.rawlake.forms import Form, Seen, mark, type_of, wider
from chronolake.rawlake.layout import DataFile, ObjectFolder, applied_of, objects_of
from chronolake.rawlake.reading import Landing, columns_of, landing, literally, united
from chronolake.rawlake.spelling import identifier, spelled, widened
from chronolake.rawlake.writing import declare, land

__all__ = [
    "QUARANTINED_PROPERTY",
    "BadFile",
    "Control",
    "ControlKind",
    "DataFile",
    "Field",
    "Form",
    "Landing",
    "Namings",
    "ObjectFolder",
    "Quarantine",
    "Seen",
    "applied_of",
    "bad_files_in",
    "columns_of",
    "controls_of",
    "declare",
    "erase",
    "identifier",
    "land",
    "land_control",
    "landed_micros",
    "landing",
    "literally",
    "mark",
    "naming_bad_files",
    "namings_of",
    "objects_of",
    "purges_in",
    "refuse",
    "rows_in",
    "spelled",
    "type_of",
    "united",
    "widened",
    "wider",
]
