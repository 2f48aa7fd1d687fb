"""Launch a stack as the harness does and look into its rank 0 from a sibling: `named`, or `unnamed` as the control.

Prints {"gil": exit status of the wait sampler, "py_spy": exit status of py-spy}.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.observers.gil_stacks import find_py_spy
from harness.placement import Placement
from harness.process import Guard
from harness.reference.observed import VARIABLE
from harness.stacks import reference

if sys.argv[1] == "unnamed":
    launched_with = reference._environment
    reference._environment = lambda knobs: {**launched_with(knobs), VARIABLE: ""}
with Guard() as guard, tempfile.TemporaryDirectory(prefix="t-") as name:
    server = reference.ReferenceStack().launch(guard, {}, Placement(), Path(name), Path(name) / "server.log")
    try:
        pid = str(server.view().executor_pid)
        commands = {
            "gil": [sys.executable, "-m", "loadgen.cli.main", "gil", pid, "--duration", "1", "--json"],
            "py_spy": [find_py_spy(), "dump", "--nonblocking", "--pid", pid],
        }
        found = {
            what: subprocess.run(words, capture_output=True, env=os.environ, timeout=60, check=False).returncode
            for what, words in commands.items()
        }
    finally:
        server.stop(8.0)
print(json.dumps(found))
