"""Start of a run on a cluster."""

import socket
from pathlib import Path

import pytest

from dragoman_service.dataset_translation.execution import translate_blocks
from dragoman_service.dataset_translation.settings import Columns, DatasetError
from dragoman_service.dataset_translation.translators import ServerSpec


def test_unreachable_cluster_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = Columns(text="a", translation="b", input_format="text", output_format="jsonl", max_characters=None)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nothing listens on it
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{bound.getsockname()[1]}")
        results = translate_blocks([], object.__new__(ServerSpec), columns, tmp_path, num_workers=1)

        with pytest.raises(DatasetError, match=r"RAY_ADDRESS.*running cluster.*refused"):
            next(results)
