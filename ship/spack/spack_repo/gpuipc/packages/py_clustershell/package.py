# Not among Spack's own packages (2026-11).

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyClustershell(PythonPackage):
    """Node sets and parallel commands on clusters."""

    homepage = "https://clustershell.readthedocs.io"
    pypi = "ClusterShell/ClusterShell-1.9.3.tar.gz"

    license("LGPL-2.1-or-later")

    version("1.9.3", sha256="e284c0e6b3fe0a0cd6be67df71dfbf6aa321188973db683a057f5637552fbc8c")

    depends_on("py-setuptools", type="build")
    depends_on("py-pyyaml", type=("build", "run"))
