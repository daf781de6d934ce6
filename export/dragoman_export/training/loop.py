"""The training loop: steps, log, evaluations and checkpoints until a limit or a signal."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from dragoman_export.data.batches import Batch, BatchingConfig, Epoch
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.checkpoint import (
    Progress,
    checkpoint_path,
    load_checkpoint,
    prune_checkpoints,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.evaluation import Evaluation, evaluate
from dragoman_export.training.loss import BatchLoss
from dragoman_export.training.optimizer import ScheduledOptimizer
from dragoman_export.training.passes import GraphPasses, Passes
from dragoman_export.training.ranks import Ranks
from dragoman_export.training.report import Meter, draw_curves
from dragoman_export.training.run_folder import RunFolder
from dragoman_export.training.stopping import (
    StopRequest,
    expected_last_step,
    explanation,
    last_step,
    patience_step,
    reached_limit,
    timed_cooldown,
)
from dragoman_export.training.text import TrainingText

_PREVIEW_STEPS, _PREVIEW_PAIRS = 3, 5
_BYTES_PER_PARAMETER = 16  # weight, gradient and two moments of Adam in float32; Muon has one
_OTHER_RANK, _MAX_MINUTES = "signal of another rank", "max-minutes"


def in_thread(task: Callable[[int], Any], number: int) -> Future[Any]:
    """Call a function in a thread of its own.

    A process forked in a thread of a `ThreadPoolExecutor`, such as a worker of a DataLoader, waits for that thread at
    its end, and fails.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(task(number))
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            future.set_exception(error)

    Thread(target=run).start()
    return future


class Trainer:
    """One invocation of training on one rank; a resumed run continues bit by bit from the checkpoint."""

    def __init__(
        self, model: Transformer, config: TrainingConfig, text: TrainingText, *, folder: RunFolder, ranks: Ranks
    ) -> None:
        """Prepare a run from step 0; `resume` loads a later state. The model is trained in place."""
        self.progress = Progress()
        self._model = model
        self._config = config
        self._text = text
        self._folder = folder
        self._ranks = ranks
        has_graphs = ranks.device.type == "cuda" and config.cuda_graphs and not config.compile
        self._optimizer = ScheduledOptimizer(model, config, keeps_gradients=has_graphs)
        self._loss = BatchLoss(model, label_smoothing=config.label_smoothing, r_drop=config.r_drop)
        self._passes = (
            GraphPasses(
                self._loss,
                bf16=config.bf16,
                batch_tokens=config.batch_tokens,
                device=ranks.device,
                max_positions=model.config.max_positions,
            )
            if has_graphs
            else Passes(self._loss, bf16=config.bf16, is_compiled=config.compile, device=ranks.device)
        )
        self._batching = BatchingConfig(
            batch_tokens=config.batch_tokens,
            max_tokens=config.max_tokens,
            concatenate=config.concatenate,
            pool_size=config.pool_size,
            has_rounded_lengths=has_graphs,
            seed=config.seed,
        )
        self._next: list[tuple[int, Batch]] = []  # target tokens and prepared batches of the next step
        self._stop_request = StopRequest()
        self._next_epoch: Future[Epoch] | None = None
        self._is_ended = False
        self._agreed_stop: str | None = None
        self._saved: Progress | None = None

    def resume(self, checkpoint: Path) -> dict[str, tuple[Any, Any]]:
        """Load the state of a checkpoint; return changed settings of batches if the rest of the epoch is skipped.

        Raises:
            RunFolderError: if it cannot be read.
            CheckpointConflictError: if it was written with the other optimizer.
        """
        content = load_checkpoint(checkpoint)
        self._optimizer.load_state_dict(content["optimizer"])
        self._model.load_state_dict(content["model"])
        self.progress = Progress(**content["progress"])
        states = content["random"]
        if self._ranks.rank < len(states):
            restore_random_state(states[self._ranks.rank])
        old, new = content["batches"], self._batches_key()
        changed = {name: (old.get(name), new.get(name)) for name in {**new, **old} if old.get(name) != new.get(name)}
        if not changed or not self.progress.epoch_step:
            return {}
        self.progress.epoch += 1
        self.progress.epoch_step = 0
        return changed

    def run(self) -> str:
        """Train until a limit, a signal or early stopping; return the reason.

        The final state is saved in a checkpoint and, unless a signal came, evaluated.
        """
        self._begin(is_shown=self._ranks.is_main)
        with self._stop_request:
            try:
                self._epoch = self._plan_epoch()
                while (reason := self._agreed_stop or reached_limit(self._config, self.progress)) is None:
                    self._train_step()
                    self._after_step()
            finally:
                self._is_ended = True
            self._finish(reason)
        return reason

    def _begin(self, *, is_shown: bool) -> None:
        self._began = time.monotonic()
        self._first_step = self.progress.step
        self._elapsed_before = self.progress.elapsed_s
        self._meter = Meter(is_shown=is_shown, first_step=self.progress.step)
        self._loss.train()

    def preview(self) -> str:
        """Train a few steps and return sizes, expected times and the text of a batch; the run must not go on."""
        self._begin(is_shown=False)
        try:
            self._epoch = self._plan_epoch()
            self._train_step()  # not counted: the first step initialises kernels
            began_s = time.monotonic()
            for _ in range(_PREVIEW_STEPS):
                self._train_step()
            step_s = (time.monotonic() - began_s) / _PREVIEW_STEPS
        finally:
            self._is_ended = True
        num_parameters = sum(parameter.numel() for parameter in self._model.parameters())
        batch, vocabulary = self._epoch.batch(0), self._text.vocabulary
        sources = vocabulary.decode(batch.source_ids[:_PREVIEW_PAIRS].tolist())
        targets = vocabulary.decode(batch.target_ids[:_PREVIEW_PAIRS].tolist())
        real = batch.source_ids.numel() if batch.source_mask is None else int(batch.source_mask.sum())
        padding = 1 - (real + len(batch.labels)) / (batch.source_ids.numel() + batch.target_ids.numel())
        steps, tokens = self._steps_per_epoch(), self._epoch.num_target_tokens
        return "\n".join(
            (
                f"parameters: {num_parameters:,}",
                f"memory of weights, gradients and optimizer: {num_parameters * _BYTES_PER_PARAMETER / 2**20:,.0f} MiB",
                f"an epoch: {steps:,} steps, {tokens:,} target tokens, about {step_s * steps / 60:,.1f} minutes",
                f"a step: {step_s:.2f} s",
                f"a batch: {len(batch.source_ids):,} pairs, padding {padding:.1%}",
                *(f"    {source}\n    {target}" for source, target in zip(sources, targets, strict=True)),
            )
        )

    def _train_step(self) -> None:
        # Each rank trains on its rows of the batches.
        self._meter.begin()
        batches = self._next or self._prepared(self.progress.epoch_step)
        losses = [self._passes.run(batch) for _, batch in batches]
        self._ranks.sum_gradients(list(self._model.parameters()))
        self._next = self._prepared(self.progress.epoch_step + 1)  # while a GPU computes
        loss, num_tokens = self._exchange(sum(map(float, losses)), sum(number for number, _ in batches))
        self._rate, self._norm = self._optimizer.step(
            self.progress.step + 1,
            num_tokens=num_tokens,
            last_step=last_step(self._config, self.progress),
            factor=timed_cooldown(self._config, self._spent_s()),
        )
        self._meter.end(loss=loss, target_tokens=num_tokens)
        self._advance(num_tokens)
        self._meter.show(epoch=self.progress.epoch, last_step=self._expected_last_step())

    def _prepared(self, epoch_step: int) -> list[tuple[int, Batch]]:
        # Target tokens and this rank's rows of each batch of a step; the last step of an epoch may have fewer.
        first = epoch_step * self._config.accumulation
        indices = range(first, min(first + self._config.accumulation, len(self._epoch)))
        shares = (self._ranks.share(self._epoch.batch(index)) for index in indices)
        return [(len(share.labels), self._passes.prepare(share)) for share in shares if share is not None]

    def _exchange(self, loss: float, num_tokens: int) -> tuple[float, int]:
        # Sums loss and tokens over the ranks and agrees on whether to stop after this step.
        minutes = self._config.max_minutes
        is_late = minutes is not None and self._spent_s() >= 60 * minutes
        has_signal = self._stop_request.signal_name is not None
        sums = torch.tensor((loss, num_tokens, has_signal, is_late), dtype=torch.float64, device=self._ranks.device)
        total_loss, total_tokens, num_signalled, num_late = self._ranks.sum(sums).tolist()
        if num_signalled:
            self._agreed_stop = self._stop_request.signal_name or _OTHER_RANK
        elif num_late:
            self._agreed_stop = _MAX_MINUTES
        return total_loss, int(total_tokens)

    def _advance(self, num_tokens: int) -> None:
        progress = self.progress
        progress.step += 1
        progress.epoch_step += 1
        progress.target_tokens += num_tokens
        progress.elapsed_s = self._elapsed_before + self._spent_s()
        if progress.epoch_step >= self._steps_per_epoch():
            progress.epoch += 1
            progress.epoch_step = 0
            self._epoch = self._plan_epoch()

    def _spent_s(self) -> float:
        return time.monotonic() - self._began

    def _expected_last_step(self) -> int | None:
        spent_s = self._spent_s()
        return expected_last_step(
            self._config,
            self.progress,
            steps_per_epoch=self._steps_per_epoch(),
            steps_per_s=(self.progress.step - self._first_step) / max(1e-9, spent_s),
            spent_s=spent_s,
        )

    def _steps_per_epoch(self) -> int:
        return math.ceil(len(self._epoch) / self._config.accumulation)

    def _plan_epoch(self) -> Epoch:
        number = self.progress.epoch
        epoch = self._next_epoch.result() if self._next_epoch else self._draw(number)
        is_last = self._config.max_epochs is not None and number + 1 >= self._config.max_epochs
        self._next_epoch = None if is_last else in_thread(self._draw, number + 1)
        return epoch

    def _draw(self, number: int) -> Epoch:
        config = self._config
        if not config.is_drawn:
            return Epoch(self._text.train, self._batching, number)
        # SentencePiece samples with a salt of the process, so samples of another process could not be repeated
        workers = 0 if config.subword_sampling else config.workers
        corpus = self._text.drawn(
            alpha=config.subword_sampling,
            max_tokens=config.max_tokens,
            seed=config.seed,
            epoch=number,
            augmentation=config.augmentation,
            workers=workers,
            is_cancelled=lambda: self._is_ended,
        )
        return Epoch(corpus, self._batching, number)

    def _after_step(self) -> None:
        step, config = self.progress.step, self._config
        if step % config.log_interval == 0:
            self._log_step()
        if step % config.eval_interval == 0:
            self._evaluate()
        if step % config.checkpoint_interval == 0:
            self._save()

    def _log_step(self) -> None:
        window, progress = self._meter.window, self.progress
        if self._ranks.is_main:
            self._folder.append(
                "step",
                step=progress.step,
                epoch=progress.epoch,
                loss=round(window.mean_loss, 5),
                learning_rate=self._rate,
                gradient_norm=round(self._norm, 5),
                tokens_per_s=round(window.tokens_per_s, 1),
                target_tokens=progress.target_tokens,
                elapsed_s=round(progress.elapsed_s, 1),
            )
        self._meter.reset()

    def _evaluate(self) -> None:
        # Evaluates on the main rank, shares the result, and saves the model if it is the best so far.
        evaluation: Evaluation = self._ranks.gather(self._measure() if self._ranks.is_main else None)[0]
        progress = self.progress
        is_best = progress.best_loss is None or evaluation.loss < progress.best_loss
        if progress.patience_step is None:
            progress.evaluations_since_best = 0 if is_best else progress.evaluations_since_best + 1
        if is_best:
            progress.best_loss = evaluation.loss
            if self._ranks.is_main:
                save_checkpoint(self._folder.best, self._model_content())
        progress.patience_step = patience_step(self._config, progress)
        if self._ranks.is_main:
            self._report(evaluation)
        if progress.patience_step == progress.step and self._config.cooldown_steps:
            self._meter.message(f"early stopping: cooldown for {self._config.cooldown_steps} steps")

    def _measure(self) -> Evaluation:
        self._loss.eval()
        with self._passes.autocast():
            evaluation = evaluate(
                self._loss,
                self._text.dev,
                self._text.vocabulary,
                bleu_sentences=self._config.bleu_sentences,
                batch_tokens=self._config.batch_tokens,
            )
        self._loss.train()
        return evaluation

    def _report(self, evaluation: Evaluation) -> None:
        progress = self.progress
        self._folder.append(
            "evaluation",
            step=progress.step,
            epoch=progress.epoch,
            elapsed_s=round(progress.elapsed_s, 1),
            **asdict(evaluation),
        )
        bleu = "" if evaluation.bleu is None else f", BLEU {evaluation.bleu:.2f}"
        minutes = progress.elapsed_s / 60
        self._meter.message(f"step {progress.step}, {minutes:.1f} min: dev loss {evaluation.loss:.4f}{bleu}")

    def _save(self) -> None:
        # Writes the state of all ranks and redraws the curves, unless this step was already saved.
        if self._saved == self.progress:
            return
        self._saved = replace(self.progress)
        states = self._ranks.gather(random_state())
        if not self._ranks.is_main:
            return
        path = checkpoint_path(self._folder.checkpoints, self.progress.step)
        content = {
            **self._model_content(),
            "optimizer": self._optimizer.state_dict(),
            "progress": asdict(self.progress),
            "batches": self._batches_key(),
            "random": states,
        }
        save_checkpoint(path, content)
        prune_checkpoints(self._folder.checkpoints, self._config.keep_checkpoints)
        draw_curves(self._folder.log, self._folder.curves)

    def _model_content(self) -> dict[str, Any]:
        return {
            "model": self._model.state_dict(),
            "model_config": self._model.config.to_dict(),
            "step": self.progress.step,
        }

    def _batches_key(self) -> dict[str, Any]:
        # Everything that determines the batches of an epoch and the number of batches per step.
        drawn = {"subword_sampling": self._config.subword_sampling, **asdict(self._config.augmentation)}
        return {
            **asdict(self._batching),
            **{name: share for name, share in drawn.items() if share},
            "accumulation": self._config.accumulation,
            "pairs": len(self._text.train),
            **self._text.train.mixing,
        }

    def _finish(self, reason: str) -> None:
        # uses the agreed reason: a signal may have reached only one rank, or arrived later
        was_signal = self._agreed_stop not in (None, _MAX_MINUTES)
        if not was_signal and self.progress.step % self._config.eval_interval:
            self._evaluate()
        self._save()
        if self._ranks.is_main:
            self._folder.append("stop", step=self.progress.step, reason=reason)
        self._meter.message(f"stopped at step {self.progress.step}: {explanation(reason, self._config, self.progress)}")
        self._meter.close()
