"""Object stores: the key `storage`, and its settings under the names that each library uses.

Three libraries read and write the same buckets: Iceberg's FileIO in Java, PyIceberg's in Python,
and obstore for landed files. Without credentials in the configuration, each of them uses the
provider's default chain (environment variables, profiles, the identity of the machine).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from chronolake.config.section import Section
from chronolake.location import scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

#: Iceberg's FileIO of each scheme.
_FILE_IO: Final = {
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
#: Properties of Iceberg's and PyIceberg's FileIO that have the meaning of a key of the section.
_PROPERTIES: Final = {
    "endpoint": ("s3.endpoint",),
    "region": ("s3.region", "client.region"),
    "path_style": ("s3.path-style-access",),
    "access_key": ("s3.access-key-id",),
    "secret_key": ("s3.secret-access-key",),
    "session_token": ("s3.session-token",),
}
_SECRET: Final = "write it as ${NAME}, and set the environment variable NAME"  # noqa: S105


class StorageConfig(Section):
    """How an object store is reached; everything is optional."""

    endpoint: str | None = Field(
        default=None,
        description="The URL of a compatible store, such as http://minio:9000; for Azure, with the "
        "account's name where the store expects it in the path. Default: the provider's own.",
    )
    region: str | None = Field(
        default=None,
        description="The region of an S3 bucket. Default: that of the provider's default chain "
        "(AWS_REGION), or us-east-1 with an endpoint.",
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether S3's URLs contain the bucket in their path instead of the host. "
        "Default: true with an endpoint, otherwise false.",
    )
    access_key: str | None = Field(
        default=None, repr=False, description=f"The id of an S3 access key; {_SECRET}."
    )
    secret_key: str | None = Field(
        default=None, repr=False, description=f"The secret of the access key; {_SECRET}."
    )
    session_token: str | None = Field(
        default=None, repr=False, description=f"The token of temporary S3 credentials; {_SECRET}."
    )
    account_key: str | None = Field(
        default=None, repr=False, description=f"The key of an Azure storage account; {_SECRET}."
    )
    sas_token: str | None = Field(
        default=None, repr=False, description=f"A shared access signature of Azure; {_SECRET}."
    )
    anonymous: bool = Field(
        default=False, description="Whether requests are not signed, as for public buckets."
    )

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ValueError("write http://host:port or https://host")
        return None if endpoint is None else endpoint.rstrip("/")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if (self.access_key is None) is not (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together; set both or neither")
        return self

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """Return a copy in which an Iceberg catalog's properties fill what is not set."""
        found: dict[str, str | bool] = {
            name: properties[given]
            for name, names in _PROPERTIES.items()
            for given in names
            if given in properties and name not in self.model_fields_set
        }
        if "path_style" in found:
            found["path_style"] = found["path_style"] == "true"
        return self.model_copy(update=found)

    @property
    def _is_path_style(self) -> bool:
        return self.endpoint is not None if self.path_style is None else self.path_style

    @property
    def _region(self) -> str | None:
        return self.region or ("us-east-1" if self.endpoint else None)

    def for_java(self, url: str) -> dict[str, str]:
        """Return the settings of Iceberg's FileIO in Java for a bucket; empty for a folder."""
        scheme = scheme_of(url)
        if scheme is None:
            return {}
        found: dict[str, str | None] = {"io-impl": _FILE_IO[scheme]}
        if scheme == "s3":
            found |= {
                "s3.endpoint": self.endpoint,
                "client.region": self._region,
                "s3.path-style-access": "true" if self._is_path_style else None,
                "s3.access-key-id": self.access_key,
                "s3.secret-access-key": self.secret_key,
                "s3.session-token": self.session_token,
            }
            if self.anonymous:
                found["client.credentials-provider"] = (
                    "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
                )
        elif scheme == "gs":
            found |= {
                "gcs.service.host": self.endpoint,
                "gcs.no-auth": "true" if self.anonymous else None,
            }
        else:
            account = account_of(url)
            host = host_of(url)
            found |= {
                f"adls.connection-string.{host}": self.endpoint,
                "adls.auth.shared-key.account.name": account if self.account_key else None,
                "adls.auth.shared-key.account.key": self.account_key,
                f"adls.sas-token.{host}": self.sas_token,
            }
        return _set_only(found)

    def for_pyiceberg(self, url: str) -> dict[str, str]:
        """Return the settings of PyIceberg's FileIO for a bucket; empty for a folder."""
        scheme = scheme_of(url)
        if scheme is None:
            return {}
        if scheme == "s3":
            return _set_only(
                {
                    "s3.endpoint": self.endpoint,
                    "s3.region": self._region,
                    "s3.access-key-id": self.access_key,
                    "s3.secret-access-key": self.secret_key,
                    "s3.session-token": self.session_token,
                    # Without an endpoint, Arrow always puts the bucket into the host.
                    "s3.force-virtual-addressing": "true"
                    if self.endpoint and not self._is_path_style
                    else None,
                    "s3.anonymous": "true" if self.anonymous else None,
                }
            )
        if scheme == "gs":
            return _set_only({"gcs.service.host": self.endpoint})
        address = urlsplit(self.endpoint or "")
        return _set_only(
            {
                # Its default needs a package that Chronolake does not install.
                "py-io-impl": "chronolake.azure_file_io.AzureFileIO",
                "adls.account-name": account_of(url),
                "adls.account-key": self.account_key,
                "adls.sas-token": self.sas_token,
                "adls.blob-storage-authority": address.netloc or None,
                "adls.blob-storage-scheme": address.scheme or None,
                "adls.dfs-storage-authority": address.netloc or None,
                "adls.dfs-storage-scheme": address.scheme or None,
            }
        )

    def for_obstore(self, url: str) -> dict[str, str]:
        """Return the settings of obstore's client for a bucket."""
        scheme = scheme_of(url)
        if scheme == "s3":
            found: dict[str, str | None] = {
                "endpoint": self.endpoint,
                "region": self._region,
                "virtual_hosted_style_request": "false" if self._is_path_style else "true",
                "access_key_id": self.access_key,
                "secret_access_key": self.secret_key,
                "session_token": self.session_token,
                # A copy that never overwrites: only the completion of a multipart upload can be
                # conditional in S3.
                "copy_if_not_exists": "multipart",
            }
        elif scheme == "gs":
            found = {"base_url": self.endpoint}
        else:
            found = {
                "account_name": account_of(url),
                "endpoint": self.endpoint,
                "access_key": self.account_key,
                "sas_key": self.sas_token,
            }
        found["skip_signature"] = "true" if self.anonymous else None
        return _set_only(found)


def scheme_of_file_io(name: str | None) -> str | None:
    """Return the scheme that a class of Iceberg's FileIO is for; None for other classes."""
    return next((scheme for scheme, known in _FILE_IO.items() if known == name), None)


def host_of(url: str) -> str:
    """Return the host of a storage account, from a URL of Azure."""
    return url.partition("://")[2].partition("/")[0].partition("@")[2]


def account_of(url: str) -> str:
    """Return the storage account of a URL of Azure."""
    return host_of(url).partition(".")[0]


def _set_only(settings: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if value is not None}
