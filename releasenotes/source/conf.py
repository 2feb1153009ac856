"""Sphinx configuration of the release notes; reno reads the notes and git's tags."""

from docutils import nodes
from sphinx.application import Sphinx

extensions = ["reno.sphinxext"]

project = "Zaqar Lite Release Notes"
author = "The Zaqar Lite authors"
copyright = "2026, The Zaqar Lite authors. Licensed under Apache-2.0"  # noqa: A001 - Sphinx's name
version = release = "0.3.0"

html_theme = "alabaster"
html_theme_options = {"description": "What is new", "page_width": "960px"}
html_show_sourcelink = False
html_show_sphinx = False
html_sidebars = {"**": ["about.html", "localtoc.html", "searchfield.html"]}


def _name_the_first_release(app: Sphinx, doctree: nodes.document) -> None:
    """Put our version where reno says 0.0.0, which is what it calls a history without tags."""
    for title in doctree.findall(nodes.title):
        if title.astext() == "0.0.0":
            title.children = [nodes.Text(app.config.version)]


def setup(app: Sphinx) -> None:
    """Register what reno does not do."""
    app.connect("doctree-read", _name_the_first_release)
