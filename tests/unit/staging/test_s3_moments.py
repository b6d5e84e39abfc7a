"""Times in answers of S3 stores: the two common forms are read quickly, and every form as botocore reads it."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.utils import parse_timestamp

from ffdl_batch.staging.stores.s3 import moment_of


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-02T03:04:05.678Z",
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05.6789012Z",
        "2026-01-02T03:04:05+02:00",
        "20260102T030405Z",
        "Fri, 02 Jan 2026 03:04:06 GMT",
        "Friday, 02-Jan-26 03:04:06 GMT",
        "2 Jan 2026 03:04:06 GMT",
        "1767322000.5",
        1767322000,
    ],
)
def test_moment_of_reads_time_like_botocore(value: Any) -> None:
    wanted = parse_timestamp(value)
    found = moment_of(value)
    assert found.tzinfo is not None
    assert found.timestamp() == pytest.approx(wanted.timestamp(), abs=1e-6)


def test_moment_of_rejects_invalid_time() -> None:
    with pytest.raises(ValueError, match="never"):
        moment_of("never, at no time GMT")
