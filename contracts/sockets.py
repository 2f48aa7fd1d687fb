"""Where folders for Unix sockets go: the kernel takes a socket's path only up to 107 bytes."""

import os
import tempfile

LONGEST = 107
SHORT = "/tmp"  # noqa: S108 - only folders that nobody else may enter are made there
STACK_FOLDER, STACK_SOCKET = "refstack-XXXXXXXX", "postproc999"
"""The longest names below a stack's temporary folder, for the room that they need."""


def parent_for_sockets(*names: str) -> str:
    """Give the folder to make another in (a name of 8 random letters) with sockets at `names` below the new one.

    The temporary folder (TMPDIR), or /tmp where sockets below that one would have too long a path, as below the
    scratch folders of some clusters.
    """
    parent = tempfile.gettempdir()
    longest = "/".join((parent, *names))
    return parent if len(os.fsencode(longest)) <= LONGEST else SHORT
