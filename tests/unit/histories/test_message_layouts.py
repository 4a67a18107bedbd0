"""The bytes of a message in memory, compared with a list of their offsets."""

from __future__ import annotations

from itertools import product

import pytest

from gpuipc_doctor.histories.message_layouts import BLANK, LAYOUTS, Layout

SIZES = (0, 8, 9, 256, 768)


def places(layout: Layout, nbytes: int) -> list[int]:
    """The offset of each byte of a message, in order."""
    if layout.block:
        blocks = range(nbytes // layout.block)
        return [layout.begin + n * layout.stride + i for n in blocks for i in range(layout.block)]
    first = nbytes // 3 if layout.split else nbytes
    return [layout.begin + i + (layout.split if i >= first else 0) for i in range(nbytes)]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_message_is_at_its_offsets_and_nothing_elsewhere(kind: str) -> None:
    layout = LAYOUTS[kind]
    for nbytes, came in product(filter(layout.fits, SIZES), (0, 1, 5, 8, 200, 768)):
        data = bytes(1 + i % 99 for i in range(min(came, nbytes)))
        total = layout.extent(nbytes) + 64
        wanted = bytearray([BLANK]) * total
        for place, byte in zip(places(layout, nbytes), data, strict=False):
            wanted[place] = byte
        assert layout.spread(data, nbytes, total) == bytes(wanted), (nbytes, came)
