"""What can be wrong with a log."""


class Trouble(Exception):
    """Why a log, or the rest of it, cannot be read. ``str()`` is one line that begins with a verb."""
