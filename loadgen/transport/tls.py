"""TLS between the socket and the HTTP parser, in memory: the socket stays ours, and so do its arrival times.

What a record's last segment was stamped with is the arrival of what the record holds. Nothing here waits, except for
the handshake, which the user's own greenlet makes.
"""

import ssl
from typing import Any

_PIECE = 1 << 16


class TlsLayer:
    """One connection's encryption. Every method may raise ssl.SSLError, which is an OSError."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "ended")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.ended = False

    def shake_hands(self, held: Any) -> None:
        """Make the handshake over a socket whose calls may wait (in gevent's way)."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                held.sendall(self._outgoing.read())
                data = held.recv(_PIECE)
                if not data:
                    raise ConnectionResetError("the server closed the connection during the TLS handshake") from None
                self._incoming.write(data)
            except ssl.SSLError:
                held.sendall(self._outgoing.read())  # the alert, so that the server knows why
                raise
            else:
                held.sendall(self._outgoing.read())
                return

    def encrypt(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Give what these bytes complete, perhaps nothing; `ended` tells that the server said goodbye."""
        self._incoming.write(data)
        pieces = []
        try:
            while piece := self._tls.read(_PIECE):
                pieces.append(piece)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(pieces)

    def take_reply(self) -> bytes:
        """Give what the layer itself wants sent (answers to key updates), mostly nothing."""
        return self._outgoing.read()
