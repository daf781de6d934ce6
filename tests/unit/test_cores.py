import os
from pathlib import Path

import pytest

from service.threads import num_cores

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux tells quotas")


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("line", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("9900000 100000", 4)],
)
def test_a_quota_of_version_2_is_a_limit(tmp_path: Path, line: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(f"{line}\n")

    assert num_cores(control_group=tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 4), ("200000", 2), ("50000", 1)])
def test_a_quota_of_version_1_is_a_limit(tmp_path: Path, quota: str, expected: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")

    assert num_cores(control_group=tmp_path) == expected


@pytest.mark.parametrize("content", [None, "", "none at all here", "0 0"])
def test_where_the_kernel_tells_no_quota_every_core_counts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)

    assert num_cores(control_group=tmp_path) == 4
