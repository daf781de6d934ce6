from pathlib import Path

import pytest

from loadtests.machine import describe_machine, num_cores
from service import threads


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000"},
        {"cpu.max": "100000 100000"},
        {"cpu.max": "150000 100000"},
        {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        {"cpu.max": "nonsense"},
    ],
)
def test_cores_are_counted_as_the_service_counts_them(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert num_cores(control_group=tmp_path) == threads.num_cores(control_group=tmp_path)


def test_a_machine_is_described_by_what_figures_depend_on() -> None:
    machine = describe_machine()

    assert machine["cores"] >= 1
    assert {"onnxruntime", "grpcio", "locust"} <= set(machine["versions"])
