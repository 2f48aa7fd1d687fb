"""The channel between machines lets nobody in who does not know the secret. Each case runs in a process of its own."""

import subprocess
import sys

import pytest
from load_support import ROOT

PREAMBLE = """
import gevent, locust, zmq.green as zmq
from gevent import Timeout
from locust.rpc.protocol import Message
from locust.rpc.zmqrpc import Client
from loadgen.remote.wire import SecureClient, SecureServer

server = SecureServer("127.0.0.1", 0, "the shared secret of both")
def hears(client, seconds):
    client.send(Message("hello", {"a": b"\\x00\\xff"}, "node"))
    with Timeout(seconds, False):
        return server.recv_from_client()
"""


def outcome(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", PREAMBLE + code], cwd=ROOT, text=True, timeout=60).strip()


def test_a_peer_with_the_secret_is_heard_and_answered() -> None:
    code = """
client = SecureClient("127.0.0.1", server.port, "node", "the shared secret of both")
node, message = hears(client, 20)
server.send_to_client(Message("welcome", {}, node))
print(node, message.type, message.data, client.recv().type)
"""
    assert outcome(code) == r"node hello {'a': b'\x00\xff'} welcome"


@pytest.mark.parametrize(
    "client",
    [
        'SecureClient("127.0.0.1", server.port, "node", "another secret, as long")',
        'Client("127.0.0.1", server.port, "node")',
    ],
    ids=["another secret", "Locust's own socket"],
)
def test_a_peer_without_it_is_not_heard(client: str) -> None:
    assert outcome(f"print(hears({client}, 2))") == "None"


def test_a_short_secret_is_refused() -> None:
    code = """
from contracts.errors import UsageError
try:
    SecureServer("127.0.0.1", 0, "short")
except UsageError as error:
    print(error)
"""
    assert "at least 16 characters" in outcome(code)
