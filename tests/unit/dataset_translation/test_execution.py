"""Connection of a run to Ray."""

import socket
from pathlib import Path

import pytest

from dragoman_service.dataset_translation.execution import HeadWatch, translate_blocks
from dragoman_service.dataset_translation.settings import Columns, DatasetError
from dragoman_service.dataset_translation.translators import ServerSpec
from dragoman_service.errors import EngineError
from tests.fakes import ManualClock


def test_unreachable_cluster_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns(text="a", translation="b", input_format="text", output_format="jsonl", max_characters=None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nothing listens on it
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{bound.getsockname()[1]}")
        results = translate_blocks([], object.__new__(ServerSpec), columns, tmp_path, num_workers=1)

        with pytest.raises(DatasetError, match=r"RAY_ADDRESS.*running cluster.*refused"):
            next(results)


def test_lost_head_ends_the_run_unless_it_is_restarted() -> None:
    clock = ManualClock()
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        watch = HeadWatch(f"127.0.0.1:{head.getsockname()[1]}", clock=clock)

        def check_for(seconds: int) -> None:
            for _ in range(seconds):
                clock.advance(1.0)
                watch.check()

        check_for(20)
        head.listen()
        check_for(20)
        head.shutdown(socket.SHUT_RDWR)

        with pytest.raises(EngineError, match=r"head process of Ray at 127.0.0.1:\d+ has ended"):
            check_for(45)
