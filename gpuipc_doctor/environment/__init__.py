"""The environment variables that matter here: which are set, and what each does in the versions found.

A variable that the version on the node does not know, a value that it does not take, a name that nobody
reads: all of these are silent in the libraries, and each has cost somebody a day. ``variables.yaml`` holds
what is known of each variable.
"""

from gpuipc_doctor.environment.judging import judge
from gpuipc_doctor.environment.reading import Assignment, facts, read
from gpuipc_doctor.environment.table import Variable, load

__all__ = ["Assignment", "Variable", "facts", "judge", "load", "read"]
