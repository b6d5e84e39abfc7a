"""Why work was lost, by incidents where there are some."""

from __future__ import annotations
