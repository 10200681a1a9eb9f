"""Who may ask the studio, and what the page may load: token, Host, Origin, content security policy.

Invariant: every request but the first, with the token in its address, carries the token in a cookie or a header; a page
of another origin, or a name that an attacker points at 127.0.0.1, is refused before anything is read.
"""

import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOCAL: Final = ("127.0.0.1", "localhost", "[::1]")


class Guard:
    """ASGI middleware around the studio; without a token, only Host and Origin are checked."""

    def __init__(self, app: ASGIApp, *, token: str | None, host: str, port: int) -> None:
        self._app, self._token = app, token
        self._cookie = f"turnwise-studio-{port}"
        """Cookies are shared by all ports of a host."""
        bound = f"[{host}]" if ":" in host else host
        self._hosts = {f"{name}:{port}" for name in (*_LOCAL, bound)}
        # A wildcard has no name of its own: any that the token's owner reaches it by will do.
        self._any_host = host in ("0.0.0.0", "::") and token is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HTTPConnection(scope)
        refusal = self._check(request, str(scope["method"]))
        app: ASGIApp = self._app if refusal is None else refusal
        await app(scope, receive, _with_headers(send))

    def _check(self, request: HTTPConnection, method: str) -> Response | None:
        """Why the request is refused, or where it is sent on to; None lets it through."""
        host = request.headers.get("host", "")
        if host not in self._hosts and not self._any_host:
            return _refuse(403, "this host name is not the studio's; open the address that `turnwise studio` printed")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return _refuse(403, "requests of other pages are refused")
        if method not in ("GET", "HEAD") and request.headers.get("content-type", "").partition(";")[0] != (
            "application/json"
        ):
            return _refuse(415, "send application/json")
        if self._token is None:
            return None
        if self._equals(request.query_params.get("token")):
            return self._sign_in(request) if method == "GET" else None
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if self._equals(request.cookies.get(self._cookie)) or (scheme.lower() == "bearer" and self._equals(bearer)):
            return None
        return _refuse(401, "the studio needs its token: open the address that `turnwise studio` printed")

    def _equals(self, given: str | None) -> bool:
        assert self._token is not None, "asked where there is a token"
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _sign_in(self, request: HTTPConnection) -> Response:
        """Keeps the token in a cookie, and out of the address."""
        assert self._token is not None, "asked where there is a token"
        rest = [(key, value) for key, value in parse_qsl(request.url.query) if key != "token"]
        path = "/" + request.url.path.lstrip("/\\")  # never `//elsewhere`
        response = RedirectResponse(path + (f"?{urlencode(rest)}" if rest else ""), status_code=303)
        response.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
        return response


def _refuse(status: int, reason: str) -> Response:
    return PlainTextResponse(reason + "\n", status_code=status)


def _with_headers(send: Send) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
        await send(message)

    return send_with
