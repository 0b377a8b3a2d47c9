"""Landing files (the raw lake): record versions in Parquet files, appended and never changed.

Source: `seeds/data-lake-v2.txt`. Each file has one schema and contains rows of many versions in any
order, with duplicates; file names only increase. `layout` finds the files (`hourly_layout` those of
a Data Lake v1), `field_types` interprets their columns and infers the type of each field, and
`reader` returns their record versions (`chronolake.change_set`). `writer` lands versions in a raw
lake of our own: `file_sequence` publishes the files, `file_schema` declares their columns in the
footers, `control_records` stores events other than changes, and `purge` erases the values of purged
records. `bad_file` reports files that cannot be read.
"""

from chronolake.landing.bad_file import (
    QUARANTINED_PROPERTY,
    BadFile,
    Quarantine,
    bad_file_error,
    bad_files_in,
    naming_bad_files,
)
from chronolake.landing.column_rules import (
    Action,
    ColumnRules,
    Protection,
    Rule,
    canonical_texts,
    expect_column,
    keyed_hashes,
)
from chronolake.landing.control_records import (
    Control,
    ControlKind,
    Namings,
    controls_of,
    land_control,
    namings_of,
)
from chronolake.landing.encoding import as_text, as_type, identifier
from chronolake.landing.field_types import (
    Field,
    Form,
    ObservedType,
    parse_field_type,
    type_of,
    wider,
)
from chronolake.landing.footers import landed_micros, rows_in
from chronolake.landing.hourly_layout import HOURLY_LIMITS, HourlyFolder, folder_at
from chronolake.landing.layout import (
    DataFile,
    Location,
    ObjectFolder,
    files_up_to,
    location_of,
    objects_of,
)
from chronolake.landing.purge import erase, purges_in
from chronolake.landing.reader import Landing, columns_of, inspect_files, literal_path, merge_types
from chronolake.landing.writer import declare, land

__all__ = [
    "HOURLY_LIMITS",
    "QUARANTINED_PROPERTY",
    "Action",
    "BadFile",
    "ColumnRules",
    "Control",
    "ControlKind",
    "DataFile",
    "Field",
    "Form",
    "HourlyFolder",
    "Landing",
    "Location",
    "Namings",
    "ObjectFolder",
    "ObservedType",
    "Protection",
    "Quarantine",
    "Rule",
    "as_text",
    "as_type",
    "bad_file_error",
    "bad_files_in",
    "canonical_texts",
    "columns_of",
    "controls_of",
    "declare",
    "erase",
    "expect_column",
    "files_up_to",
    "folder_at",
    "identifier",
    "inspect_files",
    "keyed_hashes",
    "land",
    "land_control",
    "landed_micros",
    "literal_path",
    "location_of",
    "merge_types",
    "naming_bad_files",
    "namings_of",
    "objects_of",
    "parse_field_type",
    "purges_in",
    "rows_in",
    "type_of",
    "wider",
]
