import json
from pathlib import Path
from typing import Any

from export.training.curves import draw_curves, read_log

PNG_MAGIC = b"\x89PNG"


def write_log(path: Path, *records: dict[str, Any], end: str = "") -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)
    return path


def step(number: int, loss: float = 3.0) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": loss, "learning_rate": 0.1, "tokens_per_s": 9.0}


def evaluation(number: int, bleu: float | None) -> dict[str, Any]:
    return {"event": "evaluation", "step": number, "loss": 2.0, "bleu": bleu}


def test_a_picture_is_drawn_and_nothing_else_left(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", step(1), step(2), evaluation(2, 7.0), evaluation(3, None), step(2))

    draw_curves(log, tmp_path / "curves.png")

    assert (tmp_path / "curves.png").read_bytes().startswith(PNG_MAGIC)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "log.jsonl"]


def test_a_run_that_has_logged_nothing_yet_can_be_drawn(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", {"event": "start"})

    draw_curves(log, tmp_path / "curves.png")

    assert (tmp_path / "curves.png").exists()


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", step(1), end='{"event": "st')

    assert read_log(log) == [step(1)]
