"""Import PyTorch with expandable segments, which must be set before the import."""

from __future__ import annotations

import os
from importlib import import_module

from gpuipc_doctor.worker.pytorch import EXPANDABLE

os.environ.update(EXPANDABLE)
import_module("torch")
