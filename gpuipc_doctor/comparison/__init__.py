"""Two reports held against each other: what changed, what got better, worse or slower.

Pure functions of two `model.Report`: `compare` makes a `Comparison` of them, the renderers turn that into
text and add nothing.
"""

from __future__ import annotations

from gpuipc_doctor.comparison.comparison import Comparison, compare
