"""REST catalogs: commits with explicit requirements, and errors of the catalog's service.

A REST catalog does not store the metadata that a writer sends. The writer sends changes, and the
states that they require; the service applies the changes to what is current then. Iceberg's client
requires only states that the changes concern: of two writers, one that adds rows to `main` and one
that sets a property or another branch both succeed. So the requirements are sent explicitly here:
the snapshots of all branches that readers and writers rely on, the columns and the partitioning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from chronolake.errors import CatalogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_JAVA: Final = "org.apache.iceberg"
_REST_CATALOG: Final = f"{_JAVA}.rest.RESTCatalog"
_EXCEPTIONS: Final = f"{_JAVA}.exceptions."
#: The maximum number of causes of an exception.
_DEPTH: Final = 12
_URI: Final = "uri"


class RestCommits:
    """Commits to tables of a REST catalog."""

    def __init__(self, jvm: Any, client: Any, paths: Any) -> None:
        self._iceberg = jvm.org.apache.iceberg
        self._jvm = jvm
        self._client = client
        self._paths = paths

    @classmethod
    def of(cls, jvm: Any, name: str, catalog: Any) -> Self | None:
        """Open a connection with the settings of a catalog; None if it is not a REST catalog.

        Args:
            jvm: the JVM.
            name: the catalog's name.
            catalog: the Java `Catalog`.

        Raises:
            Exception: the service does not respond, or refuses the credentials.
        """
        if str(catalog.getClass().getName()) != _REST_CATALOG:
            return None
        rest = jvm.org.apache.iceberg.rest
        # The settings also contain those that the service has sent.
        properties = catalog.properties()
        client = (
            rest.HTTPClient.builder(properties)
            .uri(properties.get(_URI))
            .withHeaders(rest.RESTUtil.configHeaders(properties))
            .build()
        )
        manager = rest.auth.AuthManagers.loadAuthManager(name, properties)
        session = manager.catalogSession(client, properties)
        paths = rest.ResourcePaths.forCatalogProperties(properties)
        return cls(jvm, client.withAuthSession(session), paths)

    def commit(self, identifier: Any, base: Any, metadata: Any, branches: Iterable[str]) -> None:
        """Apply the changes of some metadata to a table, if the table has not changed.

        Args:
            identifier: the Java `TableIdentifier`.
            base: the Java `TableMetadata` that must be current.
            metadata: the Java `TableMetadata` that was built from `base`.
            branches: the branches that must have the same snapshots as in `base`.

        Raises:
            Exception: an exception of Java, as of `TableOperations.commit`.
        """
        changes = metadata.changes()
        if changes.isEmpty():
            return
        request = self._iceberg.rest.requests.UpdateTableRequest(
            self._requirements(base, changes, branches), changes
        )
        self._client.post(
            self._paths.table(identifier),
            request,
            self._class_of("rest.responses.LoadTableResponse"),
            self._jvm.java.util.HashMap(),
            self._iceberg.rest.ErrorHandlers.tableCommitHandler(),
        )

    def _requirements(self, base: Any, changes: Any, branches: Iterable[str]) -> Any:
        required = self._jvm.java.util.ArrayList(
            self._iceberg.UpdateRequirements.forUpdateTable(base, changes)
        )
        for name in branches:
            reference = base.ref(name)
            snapshot_id = None if reference is None else reference.snapshotId()
            required.add(self._requirement("AssertRefSnapshotID")(name, snapshot_id))
        for kind, number in (
            ("AssertCurrentSchemaID", base.currentSchemaId()),
            ("AssertLastAssignedFieldId", base.lastColumnId()),
            ("AssertDefaultSpecID", base.defaultSpecId()),
        ):
            required.add(self._requirement(kind)(number))
        return required

    def _requirement(self, kind: str) -> Any:
        return getattr(self._iceberg, f"UpdateRequirement${kind}")

    def _class_of(self, name: str) -> Any:
        loader = self._client.getClass().getClassLoader()
        return self._jvm.java.lang.Class.forName(f"{_JAVA}.{name}", True, loader)


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
