"""One root error; the exit status it carries is what the command line returns."""


class ToolError(Exception):
    """Something failed that the user can act on. The message says what was attempted and what to do."""

    exit_status = 1


class UsageError(ToolError):
    """The command line or the environment is wrong; nothing was started and nothing was lost."""

    exit_status = 2


class FormatError(UsageError):
    """A file or folder on disk is not in a format (or a version of it) that this release reads."""


class LaunchError(ToolError):
    """A server could not be started; the message carries its last log lines."""


class LoadError(ToolError):
    """A load process broke its protocol or died."""


class FailingServerError(LoadError):
    """The server failed every request for a while: the load was ended early."""
