"""Authenticators that are implemented by classes of a connector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chronolake.source.declarative.components.instances import instantiate
from chronolake.source.declarative.http.auth import PLACE, Authentication
from chronolake.source.declarative.http.request_builder import Injection
from chronolake.source.declarative.http.requests_conversion import (
    from_prepared_request,
    to_prepared_request,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.source.declarative.custom_classes import Calls
    from chronolake.source.declarative.http.api_session import ApiSession
    from chronolake.source.declarative.http.request_builder import EncodedRequest, Request
    from chronolake.source.declarative.models.base import CustomAuthenticator

_RENEW = "refresh_and_set_access_token"


def custom_authentication(
    component: CustomAuthenticator, session: ApiSession, config: Mapping[str, Any]
) -> Authentication:
    """Return the authenticator of a custom component.

    Raises:
        ConfigurationError: the class is missing, or a part of it is invalid.
        SourceError: its constructor fails.
    """
    return ComponentAuthentication(instantiate(component, session, config))


@dataclass(frozen=True)
class ComponentAuthentication(Authentication):
    """An authenticator that adds what a class returns to headers, parameters and bodies.

    A class with `__call__` changes the complete request, instead of returning headers.
    """

    calls: Calls

    def injection(self) -> Injection:
        """Return the credentials for the next request.

        Raises:
            SourceError: the class fails.
        """
        credentials = Injection(place=PLACE)
        for method, place in (
            ("get_request_params", "params"),
            ("get_request_body_data", "body_data"),
            ("get_request_body_json", "body_json"),
        ):
            if self.calls.has(method):
                setattr(credentials, place, self.calls.call_for_mapping(method) or {})
        if not self._signs and self.calls.has("get_auth_header"):
            credentials.headers = self.calls.call_for_mapping("get_auth_header") or {}
        return credentials

    def prepare(self, request: Request) -> tuple[EncodedRequest, Injection]:
        """Return a request as the class changes it, and all secrets in it.

        Raises:
            SourceError: the class fails.
        """
        plain, credentials = super().prepare(request)
        return self._sign(plain, credentials) if self._signs else (plain, credentials)

    def _sign(
        self, request: EncodedRequest, credentials: Injection
    ) -> tuple[EncodedRequest, Injection]:
        prepared: Any = to_prepared_request(request)
        signed = from_prepared_request(self.calls.call("__call__", prepared) or prepared)
        added = {
            name: value
            for name, value in signed.headers.items()
            if request.headers.get(name) != value and name.lower() != "content-type"
        }
        return signed, Injection(
            params=credentials.params,
            headers={**credentials.headers, **added},
            body_data=credentials.body_data,
            body_json=credentials.body_json,
            place=PLACE,
        )

    def refresh(self, rejected: Injection) -> bool:  # noqa: ARG002 - the class has its own
        """Let the class refresh its credentials; return False if it has no method for this."""
        if not self.calls.has(_RENEW):
            return False
        self.calls.call(_RENEW)
        return True

    @property
    def _signs(self) -> bool:
        return self.calls.has("__call__")
