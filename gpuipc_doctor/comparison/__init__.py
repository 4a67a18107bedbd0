"""Compare two reports: what changed, got better, worse or slower.

Pure functions of two `model.Report`: `compare` makes a `Comparison`, which renderers turn into text without
adding anything.
"""

from __future__ import annotations

from gpuipc_doctor.comparison.comparison import Comparison, compare
