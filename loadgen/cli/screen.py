"""Text from elsewhere (a server, a process that is watched) made fit for a terminal."""


def visible(text: str, keep: str = "") -> str:
    """Write out whatever a terminal would obey instead of show: control characters, and those that turn text around.

    `keep` are characters to leave as they are (a newline, where lines are wanted).
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _written_out(one) for one in text)


def _written_out(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode("ascii")
