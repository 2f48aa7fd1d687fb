"""Request bodies read by orjson instead of the standard library: a route for FastAPI that differs in nothing else."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _OrjsonRequest(Request):
    async def json(self) -> Any:
        """Parse the body; what it raises for a bad one is a kind of json.JSONDecodeError, as FastAPI expects."""
        return orjson.loads(await self.body())


class OrjsonRoute(APIRoute):
    """A route whose bodies orjson reads."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def with_orjson(request: Request) -> Response:
            return await handle(_OrjsonRequest(request.scope, request.receive))

        return with_orjson
