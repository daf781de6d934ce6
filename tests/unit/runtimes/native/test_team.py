"""The thread pool of a decoder step, in a small C++ program."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[4] / "service" / "native" / "src"

PROGRAM = r"""
#include <cstdio>
#include <stdexcept>
#include "team.hpp"

int main() {
  dragoman::Team team(2);
  for (int round = 0; round < 1000; ++round) {
    std::atomic<int> num_done{0};
    bool has_thrown = false;
    try {
      team.run(64, [&](int i) {
        ++num_done;
        if (round % 2 && i % 7 == 3) throw std::runtime_error("task");
      });
    } catch (const std::runtime_error&) {
      has_thrown = true;
    }
    if (num_done != 64 || has_thrown != bool(round % 2)) std::printf("round %d: %d tasks\n", round, num_done.load());
  }
}
"""


def test_exception_of_a_task_reaches_the_caller_after_all_tasks(tmp_path: Path) -> None:
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("g++ is not installed")
    (source := tmp_path / "team.cpp").write_text(PROGRAM, encoding="utf-8")
    program = tmp_path / "team"

    subprocess.run([compiler, "-std=c++17", "-O1", "-pthread", "-I", SOURCES, source, "-o", program], check=True)

    assert subprocess.run([program], capture_output=True, text=True, check=False, timeout=60).stdout == ""
