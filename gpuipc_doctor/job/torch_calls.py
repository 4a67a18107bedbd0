"""PyTorch's collectives in a rank's stacks (torch.distributed, c10d)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import dropwhile, takewhile

from gpuipc_doctor.stacks.thread import Stack

_PREFIX = "torch.distributed."
_WRAPPER = re.compile(r"\(c10d_logger\.py:\d+\)$")
"""Frames of the decorators around PyTorch's collectives."""

_OPERATION = re.compile(
    r"torch\.distributed\.((?:i|monitored_|batch_i)?(?:all_|broadcast|reduce|gather|scatter|barrier|send|recv)\w*"
    r"|init_process_group|init_device_mesh|new_(?:sub)?groups?\w*|split_group|destroy_process_group|rendezvous"
    r"|_create_c10d_store|_store_based_barrier) "
)

_WAITS = (
    (re.compile(r"c10d\w*TCPStore|c10d\w*PrefixStore"), "the store"),
    (
        re.compile(r"c10d.*(?:Work|Future).*(?:4wait|waitE|11synchronize)|c10d.*(?:4wait|7barrier)"),
        "work.wait",
    ),
    (re.compile(r"^(ncclCommInit\w+|ncclCommSplit|ncclGroupEnd|ncclCommFinalize)$"), ""),
)
"""Patterns for native functions, mangled or not, in which a rank waits for other ranks → operation; empty for
the function itself."""

_OF_TORCH = re.compile(
    r"[(\[](lib(torch|c10|nccl|rccl|stdc\+\+|gcc_s|gloo)[\w.+-]*\.so|libc\.|libc-|libpthread|ld-)"
)


def operation(python: Stack) -> str:
    """The collective in which Python frames (innermost first) are; empty if in none.

    It is the outermost of the innermost frames of ``torch.distributed``: ``init_process_group``, not
    ``_new_process_group_helper``.
    """
    inward = dropwhile(lambda frame: not _is_of_torch(frame), python)
    run = [*takewhile(_is_of_torch, inward)]
    names = [found[1] for frame in run if (found := _OPERATION.match(frame))]
    return names[-1] if names else ""


def native_operation(stack: Iterable[str]) -> str:
    """The operation for which a native stack (innermost frame first) waits; empty if for none.

    Only the innermost frames count, up to the first of another library.
    """
    for frame in takewhile(_OF_TORCH.search, stack):
        function = frame.partition(" (")[0]
        for pattern, name in _WAITS:
            if found := pattern.search(function):
                return name or found[1]
    return ""


def waits_natively(stack: Iterable[str]) -> bool:
    """Whether a sleeping thread's stack (innermost frame first) shows a wait in PyTorch's libraries, such as
    that of ``backward()`` for the threads of autograd."""
    return any("(libtorch" in frame or "[libtorch" in frame for frame in takewhile(_OF_TORCH.search, stack))


def _is_of_torch(frame: str) -> bool:
    return frame.startswith(_PREFIX) or _WRAPPER.search(frame) is not None
