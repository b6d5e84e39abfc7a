"""Makes the OpenAPI document, and describes the replies only for it.

FastAPI builds a pydantic type for each documented reply of each route when the route is declared. The daemon sends its
replies without them, so they would be memory and time of every start for a document that few clients request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send


class Routes(APIRouter):
    """The routes of one module. Their `response_model` and `responses` are used only by :meth:`documented`."""

    def __init__(self, prefix: str = "", **options: Any) -> None:
        super().__init__(prefix=prefix, **options)
        self._declared: list[tuple[str, Callable[..., Any], dict[str, Any]]] = []

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """See :class:`fastapi.APIRouter`."""
        self._declared.append((path, endpoint, options))
        super().add_api_route(path, endpoint, **(options | {"response_model": None, "responses": None}))

    def documented(self) -> Sequence[BaseRoute]:
        """Return the same routes with the descriptions of their replies."""
        complete = APIRouter(prefix=self.prefix)
        for path, endpoint, options in self._declared:
            complete.add_api_route(path, endpoint, **options)
        return complete.routes


class Application(FastAPI):
    """An application over the routes of `modules`, and of modules that few clients need: they are imported at the first
    request below their path, or for the OpenAPI document."""

    def __init__(self, modules: Sequence[Routes], late: Mapping[str, str], **options: Any) -> None:
        """`late` maps paths to names of modules with a `router`."""
        super().__init__(**options)
        self._modules, self._late = list(modules), dict(late)
        for module in modules:
            self._add(module)

    def _add(self, module: Routes) -> None:
        self.router.routes.extend(module.routes)  # include_router would build each of them a second time

    def _import_late(self, path: str) -> None:
        for prefix in [prefix for prefix in self._late if path.startswith(prefix)]:
            router = import_module(self._late[prefix]).router
            del self._late[prefix]
            self._modules.append(router)
            self._add(router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See :class:`fastapi.FastAPI`."""
        if self._late and scope["type"] == "http":
            self._import_late(scope["path"])
        await super().__call__(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document. It is made at the first request."""
        if self.openapi_schema is None:
            for prefix in tuple(self._late):
                self._import_late(prefix)
            self.openapi_schema = get_openapi(
                title=self.title,
                version=self.version,
                openapi_version=self.openapi_version,
                description=self.description,
                routes=[route for module in self._modules for route in module.documented()],
            )
        return self.openapi_schema
