"""What goes wrong with a request, as OpenAI's error object and an HTTP status."""

from __future__ import annotations

from typing import Any

from graphc.errors import GraphcError, InputError, UnsupportedError


class RequestError(Exception):
    """A request that is answered with an error; `param` names the field at fault."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def record(self) -> dict[str, Any]:
        return {
            "error": {
                "message": str(self),
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def from_graphc(error: GraphcError) -> RequestError:
    """Errors in the request are the client's; the others are ours."""
    client = isinstance(error, InputError | UnsupportedError)
    return RequestError(str(error), status=400 if client else 500)
