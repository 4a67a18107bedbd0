"""``slurm(nodes=2, gpus=4, Prolog=…)`` brings up a real Slurm for one test; see `cluster.Cluster`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster


@pytest.fixture
def slurm() -> Iterator[Callable[..., Cluster]]:
    """``cluster = slurm(nodes=2)``: its nodes are idle on return, and it is gone after the test.

    ``prepare`` is called with the cluster before Slurm is started.
    """
    with ExitStack() as stack:

        def start(*, prepare: Callable[[Cluster], None] = lambda _: None, **options: object) -> Cluster:
            # Not in pytest's own directory, which is private to root and too long a path for a socket.
            directory = Path(tempfile.mkdtemp(prefix="gpuipc-slurm-"))
            stack.callback(shutil.rmtree, directory)
            cluster = Cluster(directory, **options)  # type: ignore[arg-type]
            stack.callback(lambda: print(cluster.logs()))  # noqa: T201 - pytest shows it where a test fails
            prepare(cluster)
            return stack.enter_context(cluster)

        yield start
