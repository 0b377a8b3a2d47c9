"""The raw lake: record versions in Parquet files, appended and never changed.

Source: `seeds/data-lake-v2.txt`. Files have one schema each, hold rows of many versions in any
order, repeat some, and have names that only increase. `layout` knows where they are, `field_types`
what their columns mean, `field_types` which type holds the values of a field, and `reader` makes
record versions (`chronolake.change_set`) of them. `writer` lands versions in a raw lake of our own,
where `file_sequence` lets files appear, `file_schema` says in their footers what their columns are,
`control_records` tells what happened besides, and `purge` takes what purged records said out of
them. `bad_file` says which files cannot be read.
"""

from chronolake.landing.bad_file import (
    QUARANTINED_PROPERTY,
    BadFile,
    Quarantine,
    bad_files_in,
    naming_bad_files,
    refuse,
)
from chronolake.landing.control_records import (
    Control,
    ControlKind,
    Namings,
    controls_of,
    land_control,
    namings_of,
)
from chronolake.landing.encoding import identifier, spelled, widened
from chronolake.landing.field_types import Field, Form, Seen, mark, type_of, wider
from chronolake.landing.footers import landed_micros, rows_in
from chronolake.landing.layout import DataFile, ObjectFolder, applied_of, objects_of
from chronolake.landing.purge import erase, purges_in
from chronolake.landing.reader import Landing, columns_of, landing, literally, united
from chronolake.landing.writer import declare, land

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
