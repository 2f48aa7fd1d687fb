"""Where requests go: http, https and unix sockets, resolved once, with the head that all requests share."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gevent import socket

from contracts.errors import UsageError

_PORTS = {"http": 80, "https": 443}
_OURS = ("host", "content-length", "transfer-encoding", "connection")


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server's addresses, resolved once: 2,048 users asking a resolver would measure the resolver.

    `tls` is None for a plain connection; `server_name` is what a certificate must be for.
    """

    host: str
    path: str
    addresses: tuple[tuple[int, Any], ...]
    server_name: str = ""
    tls: ssl.SSLContext | None = None

    @classmethod
    def resolve(cls, base_url: str, path: str, *, verify: bool = True) -> "HttpTarget":
        """Resolve `http://`, `https://` or `unix:/PATH/OF/SOCKET`. Raises UsageError.

        A path in the URL is kept and its final /v1 not doubled. Certificates are checked against the system's own
        authorities or those that SSL_CERT_FILE names, unless `verify` is false. Proxies are never used.
        """
        if base_url.startswith("unix:"):
            place = "/" + base_url.removeprefix("unix:").lstrip("/")
            return cls("localhost", path, ((socket.AF_UNIX, place),))
        parts = urlsplit(base_url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise UsageError(
                f"cannot use the URL {base_url!r}: it must begin with http:// or https:// and name a host, or be "
                f"unix:/PATH"
            )
        try:
            port = parts.port or _PORTS[parts.scheme]
        except ValueError as error:
            raise UsageError(f"cannot use the URL {base_url!r}: {error}") from error
        try:
            found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"cannot resolve {parts.hostname!r} of {base_url!r}: {error}") from error
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            host=f"{host}:{port}",
            path=parts.path.rstrip("/").removesuffix("/v1") + path,
            addresses=tuple((family, address) for family, _, _, _, address in found),
            server_name=parts.hostname,
            tls=_context(verify=verify) if parts.scheme == "https" else None,
        )

    def head(
        self,
        authorization: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        keep_alive: bool = True,
    ) -> bytes:
        """Render the request's head up to the value of Content-Length. Raises UsageError on a header we cannot send."""
        fields = {"Accept": "text/event-stream", "Content-Type": "application/json"}
        if authorization:
            fields["Authorization"] = authorization
        if not keep_alive:
            fields["Connection"] = "close"
        for name, value in (headers or {}).items():
            if name.lower() in _OURS:
                raise UsageError(f"the header {name!r} is this client's own to set")
            if not name.isascii() or any(sign in name + value for sign in "\r\n\0") or not name.strip():
                raise UsageError(f"cannot send a header named {name!r}: a name is ASCII, and neither holds a line end")
            for known in [known for known in fields if known.lower() == name.lower()]:
                del fields[known]
            fields[name] = value
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.path} HTTP/1.1\r\nHost: {self.host}\r\n{lines}Content-Length: ".encode()


def _context(*, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
