"""Sphinx: one source of Markdown gives the site and the man pages."""

import re
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_VERSION = re.search(r'__version__\s*=\s*"([^"]+)"', (_HERE.parent / "ffdl_batch" / "__init__.py").read_text())

project = "ffdl_batch"
author = "the ffdl_batch contributors"
project_copyright = author
release = version = _VERSION[1] if _VERSION else "unknown"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
exclude_patterns = ["_build", "examples"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"ffdl_batch {release}"
man_pages = [
    ("man/ffdl", "ffdl", "look at training jobs and steer them", author, 1),
    ("man/ffdl-submit", "ffdl-submit", "submit training jobs from FfDL manifests", author, 1),
    ("man/ffdl-admin", "ffdl-admin", "look after an installation", author, 1),
]
