"""Unix sockets' paths stay within what the kernel takes, wherever the temporary folder is."""

import socket
import tempfile
from pathlib import Path

import pytest

from contracts.sockets import LONGEST, parent_for_sockets


@pytest.mark.parametrize("letters", [10, LONGEST - len("/x/rpc") - 1, LONGEST - len("/x/rpc"), LONGEST])
def test_the_temporary_folder_is_taken_while_a_socket_below_it_can_be_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letters: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        folder = Path(short)
        while len(str(folder)) < letters:
            missing = letters - len(str(folder)) - 1
            folder /= "d" * (missing if missing < 200 else 100)
        (folder / "x").mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        fits = parent_for_sockets("x", "rpc") == str(folder)
        assert fits or parent_for_sockets("x", "rpc") == "/tmp"
        with socket.socket(socket.AF_UNIX) as one:
            if fits:
                one.bind(str(folder / "x" / "rpc"))
            else:
                with pytest.raises(OSError, match="too long"):
                    one.bind(str(folder / "x" / "rpc"))
