"""Refusals in the shape that OpenAI's clients read."""

from dataclasses import dataclass
from typing import Any

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """Why a request gets no completion: a status, one sentence and, where one is wrong, the field."""

    status: int
    message: str
    field: str | None = None
    code: str | None = None
    retry_s: int | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`"""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}


def invalid(field: str, message: str, *, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, f"{field}: {message}", field=field, code=code)
