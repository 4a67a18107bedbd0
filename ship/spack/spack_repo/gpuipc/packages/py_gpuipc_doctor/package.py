# Written to Spack's packaging guide (package API 2); untried, since Spack is on no index that tests reach.
#
#     spack repo add ship/spack/spack_repo/gpuipc
#     spack install py-gpuipc-doctor +cuda
#
# Before that, `git` must be the address of your clone, for the project is on no index yet.

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyGpuipcDoctor(PythonPackage):
    """Diagnose GPU IPC and GPU-aware MPI on a node."""

    git = "file:///path/to/your/clone"

    license("Apache-2.0")

    version("0.2.0", tag="v0.2.0")

    variant("mpi", default=False, description="MPI checks; mpi4py is built for the MPI library of the spec")
    variant("cuda", default=False, description="NVIDIA GPUs")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-clustershell@1.9:", type=("build", "run"))
    depends_on("py-click@8.2:", type=("build", "run"))
    depends_on("py-jsonschema@4.18:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-packaging@23:", type=("build", "run"))
    depends_on("py-pyyaml@6.0.2:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-tabulate@0.9:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")
    depends_on("py-cuda-bindings@12.9:12", type=("build", "run"), when="+cuda")
