"""Sphinx configuration of the release notes; reno reads the notes and git's tags."""

extensions = ["reno.sphinxext", "openstackdocstheme"]

project = "Zaqar Lite Release Notes"
author = "The Zaqar Lite authors"
copyright = "2026, The Zaqar Lite authors"  # noqa: A001 - Sphinx reads this name

html_theme = "openstackdocs"
openstackdocs_auto_name = False
openstackdocs_bug_project = ""
openstackdocs_repo_name = ""
openstackdocs_auto_version = False
version = release = "0.1.0"
