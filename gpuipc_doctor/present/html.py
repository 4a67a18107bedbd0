"""One HTML file: for a vendor's ticket, or to be opened in the morning.

It can be read without a network and without script; with script its tables sort and filter. Whatever a report
holds is text to it: Jinja2 escapes all, and the page's policy lets nothing but its own style and script in.
"""

from __future__ import annotations

from typing import Any

from gpuipc_doctor.present.text import sanitise

SIGNS = {"PASS": "✓", "SKIP": "○", "WARN": "!", "ERROR": "?", "FAIL": "✗"}
"""A status differs by its sign as well as by its colour."""


def page(template: str, **values: Any) -> str:
    """A page made from one of the templates beside this file, ending in a newline."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("gpuipc_doctor.present"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_shown,
    )
    environment.globals["signs"] = SIGNS
    return environment.get_template(template).render(values) + "\n"


def _shown(value: Any) -> Any:
    """Text without control characters, because people copy from pages; markup of templates stays."""
    is_ours = hasattr(value, "__html__") or not isinstance(value, str)
    return value if is_ours else "\n".join(map(sanitise, value.split("\n")))
