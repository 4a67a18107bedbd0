"""C++ names as people read them (Itanium C++ ABI, "External Names")."""

from __future__ import annotations

import re

_NESTED = re.compile(r"_?_Z(?:N[VKrRO]*)?(?=St\d|S[absiod]|\d)(?:St|S[absiod])?")
_PART = re.compile(r"(\d+)")
_SHOWN = 2


def readable(frame: str) -> str:
    """A frame with the last two names of a mangled function; only the file in brackets if no name is left.

    Arguments and templates are left out: ``Work::wait (libtorch_cpu.so)``.
    """
    function, _, file = frame.partition(" (")
    start = _NESTED.match(function)
    if start is None:
        is_mangled = function.startswith(("_Z", "__Z"))
        return f"[{file.rstrip(')')}]" if is_mangled and file else frame
    names, at = [], start.end()
    while (length := _PART.match(function, at)) and int(length[1]) <= len(function):
        begin = length.end()
        at = begin + int(length[1])
        name = function[begin:at]
        if not name.startswith("_GLOBAL__N"):
            names.append(name)
        if function[at : at + 1] == "I":  # a template's arguments begin
            break
    shown = "::".join(names[-_SHOWN:])
    if not shown or shown.startswith("_"):  # a function of the C++ library for itself
        return f"[{file.rstrip(')')}]" if file else frame
    return f"{shown} ({file}" if file else shown
