"""A self-contained HTML file, for a vendor's ticket or for reading later.

It needs no network and no script; with script its tables can be sorted and filtered. All report content is
text: Jinja2 escapes it, and the page's policy allows only its own style and script.
"""

from __future__ import annotations

from typing import Any

from gpuipc_doctor.present.text import sanitise

SIGNS = {"PASS": "✓", "SKIP": "○", "WARN": "!", "ERROR": "?", "FAIL": "✗"}
"""Sign of each status, so that colour is not the only difference."""


def page(template: str, **values: Any) -> str:
    """A page from one of the templates in this directory, ending in a newline."""
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
    """Text without control characters, since readers copy it; the templates' markup is kept."""
    is_ours = hasattr(value, "__html__") or not isinstance(value, str)
    return value if is_ours else "\n".join(map(sanitise, value.split("\n")))
