"""Nodes for the tests here. Needs root, as all that makes namespaces does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.overlay.nodes import Node, two_nodes


@pytest.fixture(scope="module")
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    """Two nodes for the tests of a file, with its VALUES if it has any; a test leaves nothing on them."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with two_nodes(**getattr(request.module, "VALUES", {})) as nodes:
        yield nodes
        assert [node.left() for node in nodes] == [[], []]


@pytest.fixture
def nodes(both: tuple[Node, Node]) -> Iterator[tuple[Node, Node]]:
    """The nodes, whose jobs of this test are ended after it."""
    yield both
    for node in both:
        for directory in node.run_dir.glob("job-*"):
            node.epilog(int(directory.name[4:]))
        assert node.left() == []
