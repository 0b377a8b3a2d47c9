"""REST catalogs: commits with explicit requirements, and errors of the catalog's service.

A REST catalog does not store the metadata that a writer sends. The writer sends changes, and the
states that they require; the service applies the changes to what is current then. Iceberg's client
requires only states that the changes concern: of two writers, one that adds rows to `main` and one
that sets a property or another branch both succeed. So the requirements are sent explicitly here:
the snapshots of all branches that readers and writers rely on, the columns and the partitioning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_JAVA: Final = "org.apache.iceberg"
_REST_CATALOG: Final = f"{_JAVA}.rest.RESTCatalog"
_EXCEPTIONS: Final = f"{_JAVA}.exceptions."
#: The maximum number of causes of an exception.
_DEPTH: Final = 12
_RESPONSE: Final = f"{_JAVA}.rest.responses.LoadTableResponse"


def is_rest_catalog(catalog: Any) -> bool:
    """Return whether a Java `Catalog` is a REST catalog."""
    return str(catalog.getClass().getName()) == _REST_CATALOG


def commit(jvm: Any, operations: Any, base: Any, metadata: Any, branches: Iterable[str]) -> None:
    """Apply the changes of some metadata to a table, if the table has not changed.

    Args:
        jvm: the JVM.
        operations: the table's Java `TableOperations`, of a REST catalog.
        base: the Java `TableMetadata` that must be current.
        metadata: the Java `TableMetadata` that was built from `base`.
        branches: the branches that must have the same snapshots as in `base`.

    Raises:
        Exception: an exception of Java, as of `TableOperations.commit`.
    """
    changes = metadata.changes()
    if changes.isEmpty():
        return
    iceberg = jvm.org.apache.iceberg
    required = _requirements(jvm, base, changes, branches)
    client = _private(operations, "client")
    response = client.getClass().getClassLoader().loadClass(_RESPONSE)
    client.post(
        _private(operations, "path"),
        iceberg.rest.requests.UpdateTableRequest(required, changes),
        response,
        _private(operations, "mutationHeaders"),
        iceberg.rest.ErrorHandlers.tableCommitHandler(),
    )


def _private(operations: Any, name: str) -> Any:
    """Return a private field: the client has the credentials of the table, and renews them."""
    field = operations.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(operations)


def _requirements(jvm: Any, base: Any, changes: Any, branches: Iterable[str]) -> Any:
    iceberg = jvm.org.apache.iceberg
    required = jvm.java.util.ArrayList(iceberg.UpdateRequirements.forUpdateTable(base, changes))
    for name in branches:
        reference = base.ref(name)
        snapshot_id = None if reference is None else reference.snapshotId()
        required.add(_requirement(iceberg, "AssertRefSnapshotID")(name, snapshot_id))
    for kind, number in (
        ("AssertCurrentSchemaID", base.currentSchemaId()),
        ("AssertLastAssignedFieldId", base.lastColumnId()),
        ("AssertDefaultSpecID", base.defaultSpecId()),
    ):
        required.add(_requirement(iceberg, kind)(number))
    return required


def _requirement(iceberg: Any, kind: str) -> Any:
    return getattr(iceberg, f"UpdateRequirement${kind}")


def catalog_error(failure: BaseException) -> CatalogError | None:
    """Return the error for a request that a REST catalog refused or did not answer.

    Returns:
        None if an error has another cause.
    """
    for name, message in _causes(failure):
        if name == f"{_EXCEPTIONS}NotAuthorizedException":
            return CatalogError(
                "The REST catalog refuses the credentials.",
                hint="Check `token`, `credential`, `scope` and `oauth2-server-uri` in "
                "lake.catalog.properties. A token may have expired.",
            )
        if name == f"{_EXCEPTIONS}ForbiddenException":
            return CatalogError(
                f"The REST catalog denies the request: {message}",
                hint="Grant the principal the rights to read, create, change and drop tables and "
                "schemas.",
            )
        if name == f"{_EXCEPTIONS}NoSuchWarehouseException":
            return CatalogError(
                f"The REST catalog does not have the warehouse: {message}",
                hint="Set lake.catalog.warehouse to the name of a warehouse of the catalog.",
            )
        if name in _SILENT:
            return CatalogError(
                f"The REST catalog failed: {message}",
                hint="Check that the server of lake.catalog.uri is running, and run the command "
                "again.",
            )
    return None


_SILENT: Final = frozenset(
    {
        f"{_EXCEPTIONS}{name}"
        for name in ("RESTException", "ServiceFailureException", "ServiceUnavailableException")
    }
)


def _causes(failure: BaseException) -> Iterator[tuple[str, str]]:
    """Yield class and first line of the message of the Java exceptions behind an error."""
    current: BaseException | None = failure
    while current is not None:
        java: Any = getattr(current, "java_exception", None) or getattr(current, "_origin", None)
        for _ in range(_DEPTH):
            if java is None:
                break
            yield str(java.getClass().getName()), str(java.getMessage()).partition("\n")[0]
            java = java.getCause()
        current = current.__cause__ or current.__context__
