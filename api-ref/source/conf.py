"""Sphinx configuration of the API reference and the guides; it builds without network."""

extensions = ["os_api_ref", "openstackdocstheme"]

project = "Zaqar Lite"
author = "The Zaqar Lite authors"
copyright = "2026, The Zaqar Lite authors"  # noqa: A001 - Sphinx reads this name

html_theme = "openstackdocs"
html_theme_options = {"sidebar_mode": "toc"}
html_title = "Zaqar Lite"
# The theme would otherwise ask git for the last change and link to OpenStack's bug tracker.
openstackdocs_auto_name = False
openstackdocs_bug_project = ""
openstackdocs_repo_name = ""
openstackdocs_auto_version = False
version = release = "0.1.0"
