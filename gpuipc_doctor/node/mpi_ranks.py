"""The ranks' additional environment: the site's modules, variables and libraries to preload."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuipc_doctor.node import environment_modules
from gpuipc_doctor.node.mpi_locate import NotFound
from gpuipc_doctor.site.config import NodeConfig, SourcedValue


@dataclass(frozen=True, slots=True)
class RankSetting:
    """Additions for ranks: variables, and paths of libraries that ranks load first."""

    environment: Mapping[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()

    def of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """An environment with these additions."""
        return {**environment, **self.environment}

    @property
    def preloading(self) -> dict[str, str]:
        """The environment of processes that load the libraries of a rank."""
        return {"LD_PRELOAD": ":".join(self.preload)} if self.preload else {}


def setting(
    site: NodeConfig, backends: Iterable[str], environment: Mapping[str, str], root: str = "/"
) -> RankSetting:
    """The ranks' additions on a node with GPUs of these backends. Raises `NotFound`, naming ``file:line``.

    ``environment`` overrides the site's variables, which override those of modules. ``root``: see
    `model.Node`.
    """
    loaded: dict[str, str] = {}
    if site.modules:
        try:
            loaded = environment_modules.load([module.value for module in site.modules], environment)
        except NotFound as absent:
            raise NotFound(f"{site.modules[0].where}: modules: {absent.reason}", absent.remedy) from None
    own = {name: one.value for name, one in site.environment.items() if name not in environment}
    added = {**loaded, **own}
    preload = [
        _library(site.preload[backend], {**environment, **added}, root)
        for backend in backends
        if backend in site.preload
    ]
    return RankSetting(added, tuple(preload))


def _library(said: SourcedValue, environment: Mapping[str, str], root: str) -> str:
    """Path of an existing library to preload. Raises `NotFound`."""
    unset = [name for name in re.findall(r"\$\{(\w+)\}", said.value) if name not in environment]
    if unset:
        raise NotFound(
            f"{said.where}: preload: {said.value}: {unset[0]} is not set, and no module sets it",
            f"add the module that sets {unset[0]} to `modules`, or write the full path",
        )
    path = re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], said.value)
    if not (Path(root) / path.lstrip("/")).is_file():
        raise NotFound(
            f"{said.where}: preload: file not found: {path}",
            f"correct the path, or remove the entry (why: {said.why})",
        )
    return path


def missing(site: NodeConfig, environment: Mapping[str, str]) -> Iterator[str]:
    """What is missing for the ranks' environment, with ``file:line``. No module is loaded."""
    if site.modules:
        try:
            environment_modules.find_program(environment)
        except NotFound as absent:
            yield f"{site.modules[0].where}: modules: {absent.reason}; {absent.remedy}"
    else:  # otherwise the modules may provide them
        if (library := site.mpi.library) and not Path(library).is_file():
            yield f"{site.mpi.library_where}: mpi.library: file not found: {library}; correct the path"
        for program in site.mpi.launcher.split()[:1]:
            if not shutil.which(program, path=environment.get("PATH")):
                where = f"{site.mpi.where}: mpi.launcher"
                yield f"{where}: program not found: {program}; add its directory to PATH, or write its path"
    for said in site.preload.values():
        if "$" in said.value and site.modules:
            continue  # the modules may set it
        try:
            _library(said, environment, "/")
        except NotFound as absent:
            yield f"{absent.reason}; {absent.remedy}"
