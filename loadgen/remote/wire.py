"""Locust's message channel between machines, encrypted and closed to those who do not know the shared secret.

Locust's own sockets take anybody. These are its sockets with CurveZMQ (https://rfc.zeromq.org/spec/26/) switched on.
Both ends derive the server's key pair from the secret (scrypt); its public key is never published, and without it no
peer gets past the handshake's first message. What a peer sends is msgpack and never unpickled. An eavesdropper can try
guesses of the secret against what it heard, so secrets are long (`loadgen run` makes one of 256 bits) and scrypt slow.

Locust's MasterRunner and WorkerRunner are not used on top: the master's constructor binds a socket of its own without
any of this; both share users out and move them when a worker dies, where a load here is a spec with numbered users and
seeds; and the worker runs its users in the process that talks, where a load process is fresh for every cell.
"""

import hashlib

import zmq
from locust.rpc.zmqrpc import BaseSocket
from zmq.utils import z85

from contracts.errors import UsageError
from contracts.remote import LEAST_SECRET, SECRET_NAME

_MOST_BYTES = 64 << 20
_SALT = b"loadgen worker channel 1"


def server_keys(secret: str) -> tuple[bytes, bytes]:
    """Derive the server's (public, secret) key pair. Raises UsageError on a secret that is too short."""
    if len(secret) < LEAST_SECRET:
        raise UsageError(
            f"{SECRET_NAME} must hold the secret that `loadgen run --workers-from` uses or prints, of at least "
            f"{LEAST_SECRET} characters"
        )
    private = z85.encode(hashlib.scrypt(secret.encode(), salt=_SALT, n=1 << 14, r=8, p=1, dklen=32))
    return zmq.curve_public(private), private


class SecureServer(BaseSocket):
    """The gateway's end. Raises UsageError when it cannot listen there."""

    def __init__(self, host: str, port: int, secret: str) -> None:
        public, private = server_keys(secret)
        super().__init__(zmq.ROUTER, self.ipv4_only(host, port))  # type: ignore[no-untyped-call]
        self.socket.setsockopt(zmq.LINGER, 500)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = public, private
        try:
            self.port = self.socket.bind_to_random_port(f"tcp://{host}") if port == 0 else port
            if port:
                self.socket.bind(f"tcp://{host}:{port}")
        except zmq.ZMQError as error:
            self.socket.close(0)
            raise UsageError(f"cannot listen for workers at {host}:{port}: {error}. Give another --bind") from error


class SecureClient(BaseSocket):
    """A worker's end; it connects, and connects again, by itself."""

    def __init__(self, host: str, port: int, identity: str, secret: str) -> None:
        public, _ = server_keys(secret)
        super().__init__(zmq.DEALER, self.ipv4_only(host, port))  # type: ignore[no-untyped-call]
        self.socket.setsockopt(zmq.LINGER, 2000)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # records wait here while the network is slow
        self.socket.setsockopt(zmq.IDENTITY, identity.encode())
        self.socket.curve_serverkey = public
        self.socket.curve_publickey, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.connect(f"tcp://{host}:{port}")
