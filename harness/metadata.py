"""What else could explain a result: machine, kernel, interpreter, versions of what was used, git state."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = (
    "loadgen-gil", "locust", "gevent", "pyzmq", "py-spy", "fastapi", "starlette", "uvicorn", "pydantic", "httptools",
    "numpy", "pandas", "pyarrow", "matplotlib",
)  # fmt: skip


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "implementation": platform.python_implementation()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found


def machine() -> dict[str, str]:
    """Describe the machine without naming it: no host name, no addresses."""
    return {
        "cpu": _cpu_model(),
        "cpus_online": str(os.cpu_count()),
        "cpus_allowed": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "memory_gib": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f}",
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "load_average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "switch_interval_s": f"{sys.getswitchinterval():g}",
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def git_state(folder: Path) -> Mapping[str, str]:
    """Commit and cleanliness of the checkout that this package runs from; empty when it is none."""

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"commit": commit, "dirty": "yes" if ask("status", "--porcelain") else "no"}
