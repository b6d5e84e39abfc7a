"""`ffdl_batch.ports` defines Protocols and nothing else: values are in the domain, rules in services and adapters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ffdl_batch.ports

MODULES = sorted(Path(ffdl_batch.ports.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_ports_define_only_protocols(path: Path) -> None:
    """Each statement is the docstring, an import or a class whose only base is Protocol."""
    docstring, *statements = ast.parse(path.read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    for statement in statements:
        if isinstance(statement, ast.ImportFrom | ast.Import):
            continue
        assert isinstance(statement, ast.ClassDef), ast.unparse(statement)
        assert [ast.unparse(base) for base in statement.bases] == ["Protocol"], statement.name
