"""Sphinx configuration of the API reference and the guides; it builds without network."""

from typing import Any, cast

from sphinx.application import Sphinx

extensions = ["os_api_ref"]

project = "Zaqar Lite"
author = "The Zaqar Lite authors"
copyright = "2026, The Zaqar Lite authors. Licensed under Apache-2.0"  # noqa: A001 - Sphinx reads this name
version = release = "0.3.0"

html_theme = "alabaster"
html_theme_options = {
    "description": "A message queue over HTTP, with delays, retries and dead letters.",
    "fixed_sidebar": True,
    "page_width": "1120px",
    "sidebar_width": "240px",
    "sidebar_collapse": True,
    "show_powered_by": False,
}
html_title = "Zaqar Lite"
html_static_path = ["_static"]  # custom.css is the theme's own name for additions
html_show_sourcelink = False
html_show_sphinx = False
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}


def _without_toggles(*event: object) -> None:
    """Leave out os_api_ref's script: it folds operations by jQuery and Bootstrap, and we unfold."""
    context = cast("dict[str, Any]", event[3])
    context["script_files"] = [
        script
        for script in context.get("script_files", [])
        if "api-site" not in str(getattr(script, "filename", script))
    ]


def setup(app: Sphinx) -> None:
    """Register what the theme needs."""
    app.connect("html-page-context", _without_toggles)
