"""The description of the API for stores, in OpenAPI 3.1, generated from the routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from opslog import __version__
from opslog.server.http.rest.problems import ProblemDocument
from opslog.server.http.rest.routes import Parameter, Route

_TEMPLATE = "#/components/schemas/{name}"
_CONDITIONS = {
    "If-Match": 'Only if the document still has this ETag: `"1042@planner"`; `*`: only if it exists.',
    "If-None-Match": "GET: 304 if the document still has this ETag. PUT: `*`, only if there is no document.",
}
_TYPES = {str: "string", int: "integer", bool: "boolean"}


def description(routes: Iterable[Route], root: str) -> dict[str, Any]:
    """The document.

    :param root: where stores are: ``/v1/store/``.
    """
    routes = list(routes)
    kinds = [route.body for route in routes if route.body is not None]
    kinds += [kind for route in routes for _, kind in route.answers.values() if kind is not None]
    schemas, components = msgspec.json.schema_components([*kinds, ProblemDocument], ref_template=_TEMPLATE)
    schema_of = {repr(kind): schema for kind, schema in zip([*kinds, ProblemDocument], schemas, strict=True)}
    paths: dict[str, Any] = {}
    for route in routes:
        path = f"{root}{{store}}{route.path}"
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "opslog: stores over HTTP",
            "version": __version__,
            "description": "Documents shared by many agents. ETags are stamps; conditions in headers are transactions.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "Why the request failed.",
                    "content": {"application/problem+json": {"schema": schema_of[repr(ProblemDocument)]}},
                }
            },
        },
    }


def _operation(route: Route, schema_of: dict[str, Any]) -> dict[str, Any]:
    parameters = [_in_path("store", "The name under which the store is served.")]
    if route.takes is not None:
        parameters.append(_in_path(route.takes, "Everything that follows, percent-encoded. Slashes may stay."))
    parameters += [_in_query(parameter) for parameter in route.parameters]
    for name in route.conditions:
        parameters.append(_in_header(name, _CONDITIONS[name]))
    if route.is_keyed:
        text = "A UUIDv7 for this request alone. If the request is sent again with it, it is carried out once."
        parameters.append(_in_header("Idempotency-Key", text))
    if route.right == "write":
        parameters.append(_in_header("Opslog-Agent", "The author of the write. A token allows only its own agent."))
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Needs a token that may {route.right} `stores/{{store}}`, if the server requires tokens.",
        "parameters": parameters,
        "responses": {
            **{str(status): _answer(text, kind, schema_of) for status, (text, kind) in route.answers.items()},
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if route.body is not None:
        content = {route.media_type: {"schema": schema_of[repr(route.body)]}}
        operation["requestBody"] = {"required": not route.is_optional, "content": content}
    return operation


def _answer(text: str, kind: Any, schema_of: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": text}
    if kind is not None:
        answer["content"] = {"application/json": {"schema": schema_of[repr(kind)]}}
    return answer


def _in_path(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}


def _in_header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[parameter.kind]}
    if parameter.kind is int:
        schema["minimum"] = parameter.least
        if parameter.most is not None:
            schema["maximum"] = parameter.most
    if parameter.default is not None:
        schema["default"] = parameter.default
    if parameter.is_list:
        schema = {"type": "array", "items": schema}
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": schema,
    }
