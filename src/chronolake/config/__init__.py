"""Configuration of a lake: chronolake.yml, environment variables and flags, in rising precedence.

```yaml
lake:
  catalog:
    uri: postgresql://lake:${LAKE_PASSWORD}@db.internal/lake   # default: DIR/catalog.db (SQLite)
  warehouse: s3://bucket/lake                                  # default: DIR
  spark:
    master: local[4]
    conf: {spark.driver.memory: 4g}
  maintenance:
    small_files: 32
pipelines:
  crm:
    source: {type: data_lake_v2, path: ./crm, org: X, objects: [Account]}
    mode: history
    streams:
      Account: {table: accounts}
```

Each key with a single value has an environment variable: `lake.spark.master` is
`CHRONOLAKE_SPARK_MASTER`. `${NAME}` in the file is replaced by the environment variable NAME, `$${`
by a plain `${`. Values that may be secret do not appear in any `repr`, log line or error.
"""

from chronolake.config.columns import ColumnSettings, OnCastError, TrackHistory
from chronolake.config.file_sources import (
    VERSIONED,
    CopiesSource,
    CopiesTable,
    FileFormat,
    FileSettings,
    FilesSource,
    HistorySource,
    SftpSettings,
    TableSettings,
)
from chronolake.config.loader import (
    FILE_NAME,
    FileConfig,
    Project,
    WatchedFile,
    WatchedProject,
    engine_of_project,
    find_project,
    has_targets,
    keys,
    lake_of_project,
    load,
    load_project,
    project_at,
    project_of_text,
    sources_of_project,
    variable_of,
)
from chronolake.config.patterns import is_pattern, matches
from chronolake.config.pipelines import (
    AirbyteSource,
    ConnectorSection,
    DataLakeSource,
    DeclarativeSource,
    FivetranSource,
    JdbcAddress,
    JdbcSource,
    JdbcTable,
    ModeSetting,
    MysqlSource,
    Nested,
    OnBadFile,
    OnPartitionLimit,
    OnPurge,
    PipelineConfig,
    PostgresMethod,
    PostgresSource,
    PythonSource,
    SchemaChanges,
    SingerSource,
    SqlServerMethod,
    SqlServerSource,
    StreamConfig,
    VersionedDataLakeSource,
)
from chronolake.config.sections import (
    CatalogConfig,
    CatalogKind,
    DestinationConfig,
    EngineConfig,
    LakeConfig,
    MaintenanceConfig,
    SparkConfig,
    UpConfig,
    is_due,
    is_never,
    parse_address,
)
from chronolake.config.storage import StorageConfig
from chronolake.config.targets import (
    KafkaTarget,
    MysqlTarget,
    PostgresTarget,
    RelationalTarget,
    TargetConfig,
)

__all__ = [
    "FILE_NAME",
    "VERSIONED",
    "AirbyteSource",
    "CatalogConfig",
    "CatalogKind",
    "ColumnSettings",
    "ConnectorSection",
    "CopiesSource",
    "CopiesTable",
    "DataLakeSource",
    "DeclarativeSource",
    "DestinationConfig",
    "EngineConfig",
    "FileConfig",
    "FileFormat",
    "FileSettings",
    "FilesSource",
    "FivetranSource",
    "HistorySource",
    "JdbcAddress",
    "JdbcSource",
    "JdbcTable",
    "KafkaTarget",
    "LakeConfig",
    "MaintenanceConfig",
    "ModeSetting",
    "MysqlSource",
    "MysqlTarget",
    "Nested",
    "OnBadFile",
    "OnCastError",
    "OnPartitionLimit",
    "OnPurge",
    "PipelineConfig",
    "PostgresMethod",
    "PostgresSource",
    "PostgresTarget",
    "Project",
    "PythonSource",
    "RelationalTarget",
    "SchemaChanges",
    "SftpSettings",
    "SingerSource",
    "SparkConfig",
    "SqlServerMethod",
    "SqlServerSource",
    "StorageConfig",
    "StreamConfig",
    "TableSettings",
    "TargetConfig",
    "TrackHistory",
    "UpConfig",
    "VersionedDataLakeSource",
    "WatchedFile",
    "WatchedProject",
    "engine_of_project",
    "find_project",
    "has_targets",
    "is_due",
    "is_never",
    "is_pattern",
    "keys",
    "lake_of_project",
    "load",
    "load_project",
    "matches",
    "parse_address",
    "project_at",
    "project_of_text",
    "sources_of_project",
    "variable_of",
]
