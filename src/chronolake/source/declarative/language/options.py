"""Where a value goes in a request, and what a request's body is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chronolake.source.declarative.language.base import Component

#: The four places of a request that take values by their names.
Place = Literal["request_parameter", "header", "body_data", "body_json"]


class RequestOption(Component):
    """A place in a request; `field_path` leads into a JSON body, `field_name` names one key."""

    type: Literal["RequestOption"]
    inject_into: Place
    field_name: str | None = None
    field_path: list[str] | None = None

    @model_validator(mode="after")
    def _names_one_place(self) -> RequestOption:
        if not self.field_name and not self.field_path:
            raise ValueError("a RequestOption needs a field_name or a field_path")
        if self.field_name and self.field_path:
            raise ValueError("a RequestOption has a field_name or a field_path, not both")
        if self.field_path and self.inject_into != "body_json":
            raise ValueError("a field_path leads into a JSON body only (inject_into: body_json)")
        return self


class RequestPath(Component):
    """The value is the path of the next request, or its whole URL."""

    type: Literal["RequestPath"]


class RequestBodyPlainText(Component):
    """A body that is sent as it is."""

    type: Literal["RequestBodyPlainText"]
    value: str


class RequestBodyUrlEncodedForm(Component):
    """A body of names and values, as forms send them."""

    type: Literal["RequestBodyUrlEncodedForm"]
    value: dict[str, Any]


class RequestBodyJsonObject(Component):
    """A JSON body."""

    type: Literal["RequestBodyJsonObject"]
    value: dict[str, Any]


class GraphQlQuery(BaseModel):
    """A GraphQL query and what goes with it, e.g. `variables`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    query: str


class RequestBodyGraphQL(Component):
    """A GraphQL query, sent as JSON."""

    type: Literal["RequestBodyGraphQL"]
    value: GraphQlQuery


RequestBody = Annotated[
    RequestBodyPlainText | RequestBodyUrlEncodedForm | RequestBodyJsonObject | RequestBodyGraphQL,
    Field(discriminator="type"),
]
