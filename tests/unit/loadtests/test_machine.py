from pathlib import Path

import pytest

from dragoman_service import threads
from loadtests.report.machine import describe_machine, num_cores


@pytest.mark.parametrize(
    "files",
    [
        *({"cpu.max": text} for text in ("max 100000", "100000 100000", "150000 100000", "nonsense")),
        *({"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": "100000"} for quota in ("50000", "-1")),
        {},
    ],
)
def test_cores_are_counted_as_the_service_counts_them(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert num_cores(control_group=tmp_path) == threads.num_cores(control_group=tmp_path)


def test_a_machine_is_described_by_what_figures_depend_on() -> None:
    machine = describe_machine()

    assert machine["cores"] >= 1
    assert {"onnxruntime", "grpcio", "locust"} <= set(machine["versions"])
