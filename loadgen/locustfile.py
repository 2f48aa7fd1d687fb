"""Users of one's own: the classes of a locustfile that are built on ours. Importing this patches."""

import traceback
from pathlib import Path

from locust.util.load_locustfile import load_locustfile

from contracts.errors import UsageError
from loadgen.users import LlmUser


def user_classes(path: str) -> list[type[LlmUser]]:
    """Import a locustfile and give its user classes. Raises UsageError when it has none that will do."""
    if not Path(path).is_file():
        raise UsageError(f"--locustfile {path}: there is no such file on this machine")
    try:
        found, shapes = load_locustfile(path)[-2:]
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        line = traceback.format_exception(error)[-2:]
        raise UsageError(f"--locustfile {path} cannot be imported:\n{''.join(line).strip()}") from error
    if shapes:
        raise UsageError(f"--locustfile {path} has a LoadTestShape: say it as --stages instead")
    ours = [kind for kind in found.values() if issubclass(kind, LlmUser)]
    foreign = [kind.__name__ for kind in found.values() if not issubclass(kind, LlmUser)]
    if foreign or not found:
        which = f"{', '.join(sorted(foreign))} of" if foreign else "no user in"
        raise UsageError(
            f"{which} --locustfile {path} is a subclass of loadgen.users.LlmUser, whose requests alone are recorded"
        )
    return ours
