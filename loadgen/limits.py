"""The limit on open files: every HTTP user needs a socket of its own."""

import resource

from contracts.errors import UsageError

_OWN_FILES = 64


def raise_file_limit(sockets: int) -> None:
    """Raise this process's soft limit for so many sockets. Raises UsageError when the hard limit forbids it."""
    needed = sockets + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{sockets} users need {needed} open files, but the hard limit is {hard}: raise it (ulimit -Hn {needed}), "
            f"or use a lower --concurrency or more --workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
