"""The further front ends, as the first one starts and ends them."""

import asyncio
import socket
from collections.abc import Sequence

from harness.reference.child import Child
from harness.reference.frontend.peers import peer_socket
from harness.reference.proxy import RpcProxy
from harness.reference.rpc.envelope import RPCError
from harness.reference.settings import ReferenceSettings

LOOK_S = 0.02


class OtherFrontends:
    """Front ends 1 to N-1, each a process with one of the `listeners`, which are closed here once handed over."""

    def __init__(self, proxy: RpcProxy, settings: ReferenceSettings, listeners: Sequence[socket.socket]) -> None:
        self._address = proxy.address
        self._children: list[Child] = []
        self._asked = False
        task = {"settings": settings.to_json(), "address": proxy.address, "key": proxy.key.hex()}
        for number, listener in enumerate(listeners, 1):
            given = {**task, "number": number, "fd": listener.fileno()}
            module = "harness.reference.frontend.process"
            self._children.append(Child(module, given, number=number, pass_fds=[listener.fileno()]))
            listener.close()

    async def accepting(self) -> None:
        """Wait until all of them accept requests. Raises RPCError when one ends instead."""
        for number, child in enumerate(self._children, 1):
            while not peer_socket(self._address, number).exists():
                if not child.running():
                    raise RPCError(f"front end {number} ended with status {child.status} before it served")
                await asyncio.sleep(LOOK_S)

    def alive(self) -> bool:
        return all(child.running() for child in self._children)

    def ask_to_end(self) -> None:
        """Tell them to end in order; once, for the second time would cut short what they still have to answer."""
        if self._asked:
            return
        self._asked = True
        for child in self._children:
            child.ask_to_end()

    def stop(self) -> None:
        self.ask_to_end()
        for child in self._children:
            child.wait()
