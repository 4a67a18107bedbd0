"""PyTorch, told of expandable segments before it is imported: what the stem of its workers imports."""

from __future__ import annotations

import os
from importlib import import_module

from gpuipc_doctor.allocators.pytorch import EXPANDABLE

os.environ.update(EXPANDABLE)
import_module("torch")
