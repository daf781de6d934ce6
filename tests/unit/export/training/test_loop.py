import dataclasses
import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event  # type: ignore[import-untyped]
from torch import Tensor

from dragoman_export.data.batches import CorpusPart
from dragoman_export.errors import CheckpointConflictError, DivergenceError
from dragoman_export.training.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from dragoman_export.training.loop import Trainer, in_thread
from dragoman_export.training.ranks import Ranks
from dragoman_export.training.report import Record, read_log
from dragoman_export.training.text import TrainingText
from tests.unit.export.tiny_training import make_model, make_text, make_trainer

ROUNDING = 1e-5  # float32 sums in another order; gradients are of the order of 0.1.

# Everything that draws at random, and a corpus of less than 12 steps, so that an epoch ends in between.
HARD: dict[str, Any] = {"concatenate": 0.3, "max_steps": 12, "eval_interval": 5}


def last_checkpoint(path: Path) -> Path:
    return list_checkpoints(path / "checkpoints")[-1]


def newest(path: Path) -> dict[str, Any]:
    return load_checkpoint(last_checkpoint(path))


def records(path: Path, event: str) -> list[Record]:
    return [record for record in read_log(path / "log.jsonl") if record["event"] == event]


def resume(path: Path, **settings: Any) -> Trainer:
    trainer = make_trainer(path, **settings)
    trainer.resume(last_checkpoint(path))
    return trainer


@pytest.mark.parametrize(
    ("optimizer", "norm", "more"),
    [("muon", "pre", {}), ("adam", "post", {"subword_sampling": 0.2, "r_drop": 5.0})],
)
def test_resumed_run_equals_an_uninterrupted_run(
    tmp_path: Path, optimizer: str, norm: str, more: dict[str, float]
) -> None:
    settings = {**HARD, "optimizer": optimizer, **more}
    make_trainer(tmp_path / "whole", model=make_model(norm=norm), **settings).run()

    make_trainer(tmp_path / "parts", model=make_model(norm=norm), **{**settings, "max_steps": 7}).run()
    resume(tmp_path / "parts", model=make_model(norm=norm), **settings).run()

    whole, parts = newest(tmp_path / "whole")["model"], newest(tmp_path / "parts")["model"]
    assert newest(tmp_path / "parts")["progress"]["epoch"] > 0
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


MIXED = (CorpusPart(20, 2.5, ("en", "de")), CorpusPart(100, 0.3, ("en", "fr")))


def mixed_text(*parts: CorpusPart) -> TrainingText:
    text = make_text()
    return dataclasses.replace(text, train=dataclasses.replace(text.train, parts=parts))


def test_resumed_run_continues_its_mixture(tmp_path: Path) -> None:
    settings, text = {**HARD, "capitals": 0.3}, mixed_text(*MIXED)
    make_trainer(tmp_path / "whole", text=text, **settings).run()

    make_trainer(tmp_path / "parts", text=text, **{**settings, "max_steps": 7}).run()
    resume(tmp_path / "parts", text=text, **settings).run()

    whole, parts = newest(tmp_path / "whole")["model"], newest(tmp_path / "parts")["model"]
    assert newest(tmp_path / "parts")["progress"]["epoch"] > 0
    assert all(torch.equal(weight, parts[name]) for name, weight in whole.items())


def test_changed_weights_end_the_epoch(tmp_path: Path) -> None:
    make_trainer(tmp_path, text=mixed_text(*MIXED), max_steps=1).run()

    other = make_trainer(tmp_path, text=mixed_text(MIXED[0], MIXED[1]._replace(weight=0.5)), max_steps=2)

    assert other.resume(last_checkpoint(tmp_path)) == {"weight": ([2.5, 0.3], [2.5, 0.5])}


def test_two_accumulated_batches_equal_one_of_twice_the_size(tmp_path: Path) -> None:
    text = make_text([("red blue", "BLUE RED"), ("blue red", "RED BLUE")] * 4)
    tokens = 8 * int(max(text.train.sources.lengths.max(), text.train.targets.lengths.max()))
    settings: Mapping[str, Mapping[str, Any]] = {
        "one": {"batch_tokens": tokens},
        "two": {"batch_tokens": tokens // 2, "accumulation": 2},
    }

    for name, cut in settings.items():
        make_trainer(tmp_path / name, text=text, model=make_model(dropout=0.0), bf16=False, max_steps=1, **cut).run()

    one, two = (newest(tmp_path / name)["optimizer"]["adam"]["state"] for name in settings)
    for number, moments in one.items():  # the weights are alike after any first step of Adam
        torch.testing.assert_close(moments["exp_avg"], two[number]["exp_avg"], atol=ROUNDING, rtol=0)
    assert newest(tmp_path / "two")["progress"]["epoch"] == 1


@pytest.mark.parametrize(
    ("settings", "reason", "progress"),
    [
        # the first evaluation is always the best so far
        ({"lr_factor": 1e-30, "eval_interval": 1, "patience": 3, "max_steps": 99}, "patience", {"step": 4}),
        ({"max_epochs": 2}, "max-epochs", {"epoch": 2, "epoch_step": 0}),
        ({"max_minutes": 1e-9}, "max-minutes", {"step": 1}),
    ],
)
def test_limit_ends_a_run(tmp_path: Path, settings: dict[str, Any], reason: str, progress: dict[str, int]) -> None:
    trainer = make_trainer(tmp_path, **settings)

    assert trainer.run() == reason
    assert {name: getattr(trainer.progress, name) for name in progress} == progress


def test_cooldown_after_patience_survives_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr_factor": 1e-30, "warmup_steps": 1, "patience": 1, "cooldown_steps": 3}
    settings |= {"eval_interval": 2, "log_interval": 1, "checkpoint_interval": 5}

    make_trainer(tmp_path, **settings).run()
    whole = [record["learning_rate"] for record in records(tmp_path, "step")]
    again = make_trainer(tmp_path / "again", **settings)
    again.resume(tmp_path / "checkpoints" / "step-00000005.pt")

    assert again.run() == "patience"
    assert len(whole) == 7  # `patience` ends at step 4
    falling = [rate * step**0.5 / whole[0] for step, rate in enumerate(whole, start=1)]
    assert falling == pytest.approx([1, 1, 1, 1, 0.75, 0.5, 0.25])
    assert [record["learning_rate"] for record in records(tmp_path / "again", "step")] == whole[5:]


class _RanksWithSignal(Ranks):
    """A rank whose peer received a signal."""

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor + torch.tensor((0.0, 0.0, 1.0, 0.0))


def test_signal_of_another_rank_stops_the_run(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, ranks=_RanksWithSignal(), log_interval=1)

    assert trainer.run() == "signal of another rank"
    assert records(tmp_path, "evaluation") == []  # an evaluation here would wait for the peer forever
    assert newest(tmp_path)["progress"]["step"] == 1


def test_run_ends_with_evaluation_checkpoint_and_curves(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=3, log_interval=2).run()

    assert [record["step"] for record in records(tmp_path, "step")] == [2]
    assert [record["step"] for record in records(tmp_path, "evaluation")] == [3]
    assert [record["reason"] for record in records(tmp_path, "stop")] == ["max-steps"]
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000003.pt"]
    assert (tmp_path / "curves.png").exists()


def tensorboard_values(path: Path) -> dict[tuple[str, int], float]:
    # A record is the length (8 bytes), its checksum (4), an event, and its checksum (4).
    (content,) = (file.read_bytes() for file in (path / "tensorboard").iterdir())
    values, first = dict[tuple[str, int], float](), 0
    while first < len(content):
        size = int.from_bytes(content[first : first + 8], "little")
        event = Event.FromString(content[first + 12 : first + 12 + size])
        values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        first += size + 16
    return values


def test_tensorboard_has_the_records_of_the_log(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=3, log_interval=2).run()

    values = tensorboard_values(tmp_path)
    assert values["step/loss", 2] == pytest.approx(records(tmp_path, "step")[0]["loss"])
    assert values["step/learning_rate", 2] == pytest.approx(records(tmp_path, "step")[0]["learning_rate"])
    assert values["evaluation/loss", 3] == pytest.approx(records(tmp_path, "evaluation")[0]["loss"])


def test_best_weights_are_kept(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=6, eval_interval=2, checkpoint_interval=2, keep_checkpoints=2).run()

    best = min(records(tmp_path, "evaluation"), key=lambda record: float(record["loss"]))
    assert load_checkpoint(tmp_path / "checkpoints" / "best.pt")["step"] == best["step"]
    assert len(list_checkpoints(tmp_path / "checkpoints")) == 2


def test_target_tokens_of_an_epoch_are_counted_once(tmp_path: Path) -> None:
    text = make_text()
    trainer = make_trainer(tmp_path, text=text, max_epochs=1)

    trainer.run()

    assert trainer.progress.target_tokens == int(text.train.targets.lengths.sum())


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({}, {"batch_tokens": 64}, {"batch_tokens": (128, 64)}),
        ({}, {"subword_sampling": 0.2}, {"subword_sampling": (None, 0.2)}),
    ],
)
def test_changed_batches_skip_the_rest_of_the_epoch(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], changed: dict[str, Any]
) -> None:
    make_trainer(tmp_path, max_steps=3, **before).run()
    trainer = make_trainer(tmp_path, **now)

    assert trainer.resume(last_checkpoint(tmp_path)) == changed
    assert (trainer.progress.step, trainer.progress.epoch, trainer.progress.epoch_step) == (3, 1, 0)


@pytest.mark.parametrize("now", [{"batch_tokens": 64}, {"lr_factor": 3.0}])
def test_nothing_is_skipped_between_epochs_or_with_equal_batches(tmp_path: Path, now: dict[str, Any]) -> None:
    make_trainer(tmp_path, max_epochs=1).run()
    trainer = make_trainer(tmp_path, **now)

    assert trainer.resume(last_checkpoint(tmp_path)) == {}
    assert trainer.progress.epoch == 1


def test_checkpoint_of_the_other_optimizer_is_rejected(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=1).run()
    trainer = make_trainer(tmp_path, optimizer="muon")

    with pytest.raises(CheckpointConflictError):
        trainer.resume(last_checkpoint(tmp_path))
    assert trainer.progress.step == 0


def test_diverged_run_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=2).run()
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    content = load_checkpoint(path)
    content["model"]["embedding.weight"][5] = torch.inf
    save_checkpoint(path, content)

    with pytest.raises(DivergenceError, match="step"):
        resume(tmp_path, max_steps=99, checkpoint_interval=1).run()

    assert list_checkpoints(tmp_path / "checkpoints") == [path]


def test_process_that_is_forked_while_an_epoch_is_prepared_ends_without_error() -> None:
    def exit_code(argument: int) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=abs, args=(argument,))
        process.start()
        process.join()
        return process.exitcode

    assert in_thread(exit_code, 1).result() == 0


def test_error_of_a_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda number: 1 / number, 0).result()
