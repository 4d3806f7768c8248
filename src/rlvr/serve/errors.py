"""Refusals in the shape that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error"}


class ApiError(Exception):
    """Why a request gets no completion: a status, one sentence and, where one is wrong, the field."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.field, self.code, self.retry_s = status, field, code, retry_s

    def body(self) -> dict[str, Any]:
        """`{"error": {"message", "type", "param", "code"}}`"""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.field, "code": self.code}}


def invalid(field: str | None, message: str, *, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, f"{field}: {message}" if field else message, field=field, code=code)
