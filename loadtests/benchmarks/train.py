"""`train`: training speed, compared with other implementations of the same network on the same batches."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers import MarianConfig, MarianMTModel

from dragoman_export.data.batches import Batch, BatchingConfig, EncodedCorpus, Epoch, TokenLists
from dragoman_export.model.config import PRESETS, ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.loss import BatchLoss
from dragoman_export.training.optimizer import ScheduledOptimizer
from dragoman_export.training.passes import Passes
from loadtests.benchmarks.bench import alternating
from loadtests.generator.flags import within
from loadtests.report.report import environment, figures_line, num_cores, write_json

NAME: Final = "train.json"
Step = Callable[[Batch], None]  # trains on a batch

_DESCRIPTION: Final = f"""\
Trains the same network with Adam in bfloat16 on the same batches, on all cores, with this trainer and with others:
`transformers` (MarianMTModel) and `torch.nn.Transformer`. The lengths of the pairs are log-normal, about those of
everyday sentences; the tokens are random. Speeds are target tokens per second without padding, the median of
repetitions that alternate.

Prints a line for each system and writes {NAME} to --output.

exit codes: 0 measured, 2 invalid usage"""
_NUM_PAIRS: Final = 1 << 17  # the pool that the trainer sorts by length
_MEAN_LOG_LENGTH: Final = 2.2  # of the source; 9 tokens
_SMOOTHING: Final = 0.1
_IGNORED: Final = -100  # label of padding


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command and its flags."""
    parser = add_command("train", help="compare the speed of training", description=_DESCRIPTION)
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="network (small)")
    add(
        "--batch-tokens",
        type=within(1, 1 << 20, int),
        default=3072,
        metavar="N",
        help="of a batch, with padding (3072)",
    )
    add("--batches", type=within(1, 10_000, int), default=20, metavar="N", help="in each repetition (20)")
    add("--repetitions", type=within(1, 100, int), default=3, metavar="N", help="of each system (3)")
    add("--output", type=Path, default=Path("build/train"), metavar="DIR", help="(build/train)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(num_cores())
    torch.manual_seed(1)
    config = PRESETS[arguments.preset]
    batches = make_batches(config, arguments.batch_tokens, arguments.batches)
    labels = sum(len(batch.labels) for batch in batches)
    sides = [(batch.source_ids.numel(), batch.source_mask) for batch in batches]
    sources = sum(size if mask is None else int(mask.sum()) for size, mask in sides)
    padded = sum(batch.target_ids.numel() for batch in batches) + sum(size for size, _ in sides)
    systems = {
        "dragoman": own_step(config),
        "transformers": other_step(marian(config)),
        "torch.nn.Transformer": other_step(PlainTransformer(config)),
    }
    times: dict[str, list[float]] = {name: [] for name in systems}
    for step in systems.values():  # warm up
        step(batches[0])
    rounds = list(alternating(list(systems), arguments.repetitions))
    for _, name in tqdm(rounds, desc="train", unit="run", disable=None, leave=False):
        began_s = time.perf_counter()
        for batch in batches:
            systems[name](batch)
        times[name].append(time.perf_counter() - began_s)
    speeds = {name: labels / median(taken) for name, taken in times.items()}
    record = {
        **environment("benchmarks"),
        "padding": 1 - (labels + sources) / padded,  # of both sides
        "systems": {name: {"tokens_per_s": speeds[name], "elapsed_s": taken} for name, taken in times.items()},
        "ratio": speeds["dragoman"] / max(speed for name, speed in speeds.items() if name != "dragoman"),
    }
    write_json(arguments.output / NAME, record)
    for name, speed in speeds.items():
        figures = {"tokens_per_s": round(speed), "ratio": f"{speeds['dragoman'] / speed:.2f}"}
        print(figures_line("train", {"system": name, **figures, "padding": f"{record['padding']:.3f}"}))
    return 0


def make_batches(config: ModelConfig, batch_tokens: int, count: int) -> list[Batch]:
    """Return random batches, sorted and cut as the trainer does."""
    random = np.random.default_rng(1)
    lengths = np.exp(random.normal(_MEAN_LOG_LENGTH, 0.5, _NUM_PAIRS)).astype(int) + 1
    others = np.maximum(1, (lengths * np.exp(random.normal(0.0, 0.15, _NUM_PAIRS))).astype(int))
    sides = (
        TokenLists(random.integers(100, config.vocabulary_size, length) for length in side)
        for side in (lengths, others)
    )
    corpus = EncodedCorpus(sources=next(sides), targets=next(sides))
    epoch = Epoch(corpus, BatchingConfig(batch_tokens=batch_tokens, max_tokens=256), 0)
    return [epoch.batch(index) for index in range(min(count, len(epoch)))]


def own_step(config: ModelConfig) -> Step:
    """Return a step of this trainer."""
    training = TrainingConfig(label_smoothing=_SMOOTHING)
    loss = BatchLoss(Transformer(config).train(), label_smoothing=_SMOOTHING)
    passes = Passes(loss, bf16=True, is_compiled=False, device=torch.device("cpu"))
    optimizer = ScheduledOptimizer(loss.model, training)
    num_steps = 0

    def step(batch: Batch) -> None:
        nonlocal num_steps
        num_steps += 1
        passes.run(batch)
        optimizer.step(num_steps, num_tokens=len(batch.labels))

    return step


def other_step(model: nn.Module) -> Step:
    """Return a step of a network that returns logits [B, T, V] of source ids, their mask, and target ids."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=1e-4, fused=True)

    def step(batch: Batch) -> None:
        mask = torch.ones_like(batch.source_ids, dtype=torch.bool) if batch.source_mask is None else batch.source_mask
        labels = torch.full((batch.target_ids.numel(),), _IGNORED)
        labels[batch.label_positions] = batch.labels
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits: Tensor = model(batch.source_ids, mask, batch.target_ids)
            rows = logits.flatten(0, 1).float()
            functional.cross_entropy(rows, labels, ignore_index=_IGNORED, label_smoothing=_SMOOTHING).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def marian(config: ModelConfig) -> nn.Module:
    """Return the network of `transformers`."""
    sizes: dict[str, Any] = {
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), config.num_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), config.ffn_size),
    }
    sizes |= {"vocab_size": config.vocabulary_size, "decoder_vocab_size": config.vocabulary_size}
    sizes |= {"dropout": config.dropout, "pad_token_id": 0, "decoder_start_token_id": 1, "use_cache": False}
    model = MarianMTModel(MarianConfig(**sizes, activation_function="relu"))

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, source_ids: Tensor, mask: Tensor, target_ids: Tensor) -> Tensor:
            return self.model(input_ids=source_ids, attention_mask=mask, decoder_input_ids=target_ids).logits  # type: ignore[no-any-return]

    return Logits()


class PlainTransformer(nn.Module):
    """`torch.nn.Transformer` with a tied embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary_size, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.num_encoder_layers,
            config.num_decoder_layers,
            config.ffn_size,
            config.dropout,
            batch_first=True,
        )

    def forward(self, source_ids: Tensor, mask: Tensor, target_ids: Tensor) -> Tensor:
        """Return logits [B, T, V]."""
        causal = nn.Transformer.generate_square_subsequent_mask(target_ids.size(1), dtype=torch.bool)
        states = self.transformer(
            self.embedding(source_ids),
            self.embedding(target_ids),
            tgt_mask=causal,
            src_key_padding_mask=~mask,
            memory_key_padding_mask=~mask,
            tgt_is_causal=True,
        )
        return functional.linear(states, self.embedding.weight)
