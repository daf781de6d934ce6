"""`train`: target tokens a second of this trainer, of plain `torch.nn.Transformer` and of JoeyNMT, on the same batches.

Every system has the same size, dropout, label smoothing, Adam and clipping, and computes in this process, in turn.
JoeyNMT takes part where it can be imported.
"""

import argparse
import dataclasses
import importlib
import importlib.util
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from dragoman_export.data.batches import Batch, BatchingConfig, EncodedCorpus, Epoch, TokenLists
from dragoman_export.data.reader import ParallelFiles, read_spread
from dragoman_export.data.vocabulary import Vocabulary, VocabularyConfig, train_vocabulary
from dragoman_export.model.config import PRESETS, ModelConfig
from dragoman_export.model.layers import sinusoidal_positions
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.loss import BatchLoss
from dragoman_export.training.ranks import keep_freed_memory
from loadtests.flags import within
from loadtests.report import markdown

_LABEL_SMOOTHING: Final = 0.1
_CLIP_NORM: Final = 1.0
_NUM_PAIRS: Final = 20_000
_STEPS_OF_A_TURN: Final = 3


class System(Protocol):
    """A network and its loss."""

    model: nn.Module

    def loss(self, batch: Batch) -> Tensor:
        """Return the label-smoothed loss, summed over the target tokens."""


def add_commands(add_command: Callable[..., argparse.ArgumentParser]) -> None:
    """Declare the command and its flags."""
    parser = add_command("train", help="compare the speed of training with plain PyTorch and JoeyNMT")
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>target lines")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="size of the network (small)")
    parser.add_argument("--vocabulary-size", type=within(1, 10**6, int), metavar="V", help="(that of the preset)")
    parser.add_argument("--batch-tokens", type=within(1, 10**6, int), default=4096, metavar="N", help="(4096)")
    parser.add_argument("--turns", type=within(1, 1000, int), default=6, metavar="N", help="of each system (6)")
    parser.add_argument("--threads", type=within(1, 1024, int), metavar="T", help="of PyTorch (its own choice)")
    parser.add_argument("--compile", action="store_true", help="this trainer and plain PyTorch by torch.compile, too")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Train every system in turn and print a table; return the exit code."""
    keep_freed_memory()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    config, epoch = _prepare(arguments)
    learners = dict(_learners(config, is_compiled=arguments.compile))
    steps = [epoch.batch(index % len(epoch)) for index in range((arguments.turns + 1) * _STEPS_OF_A_TURN)]
    speeds: dict[str, list[float]] = {name: [] for name in learners}
    for first in range(0, len(steps), _STEPS_OF_A_TURN):
        batches = steps[first : first + _STEPS_OF_A_TURN]
        for name, learner in learners.items():
            began_s = time.perf_counter()
            for batch in batches:
                learner.step(batch)
            speeds[name].append(sum(len(batch.labels) for batch in batches) / (time.perf_counter() - began_s))
    rows = [
        [name, f"{median(turns[1:]):,.0f}", _spread(turns[1:])] for name, turns in speeds.items()
    ]  # the first warms up
    num_parameters = learners["dragoman, fp32"].num_parameters
    print(f"{arguments.preset}: {num_parameters:,} parameters, {torch.get_num_threads()} threads")
    print(markdown(["system", "target tokens/s, median", "least to most"], rows))
    return 0


def _spread(turns: list[float]) -> str:
    return f"{min(turns):,.0f} to {max(turns):,.0f}"


def _prepare(arguments: argparse.Namespace) -> tuple[ModelConfig, Epoch]:
    """Return the network and the batches of some pairs of the text, in random order."""
    files = [ParallelFiles(source=path) for path in arguments.data]
    pairs = read_spread(files, count=_NUM_PAIRS, max_malformed=0.001)
    size = arguments.vocabulary_size or PRESETS[arguments.preset].vocabulary_size
    vocabulary = train_vocabulary(
        (side for pair in pairs for side in (pair.source, pair.target)), VocabularyConfig(size=size)
    )
    corpus = encode(vocabulary, [pair.source for pair in pairs], [pair.target for pair in pairs])
    batching = BatchingConfig(batch_tokens=arguments.batch_tokens, max_tokens=256)
    config = dataclasses.replace(PRESETS[arguments.preset], vocabulary_size=len(vocabulary))
    return config, Epoch(corpus, batching, 0)


def encode(vocabulary: Vocabulary, sources: list[str], targets: list[str]) -> EncodedCorpus:
    """Return token ids of both sides."""
    sides = TokenLists(vocabulary.encode(sources)), TokenLists(vocabulary.encode(targets))
    return EncodedCorpus(sources=sides[0], targets=sides[1])


def _learners(config: ModelConfig, *, is_compiled: bool) -> Iterator[tuple[str, "_Learner"]]:
    for name, kind in (("dragoman", Dragoman), ("torch.nn.Transformer", PlainPyTorch)):
        yield f"{name}, fp32", _Learner(kind(config))
        yield f"{name}, bf16", _Learner(kind(config), is_bf16=True)
        if is_compiled:
            yield f"{name}, bf16, compiled", _Learner(kind(config), is_bf16=True, is_compiled=True)
    if importlib.util.find_spec("joeynmt"):
        yield "JoeyNMT, fp32", _Learner(JoeyNMT(config))
        yield "JoeyNMT, bf16", _Learner(JoeyNMT(config), is_bf16=True)


class _Learner:
    """A system with its optimizer."""

    def __init__(self, system: System, *, is_bf16: bool = False, is_compiled: bool = False) -> None:
        self._loss: Callable[[Batch], Tensor] = torch.compile(system.loss, dynamic=True) if is_compiled else system.loss
        self._is_bf16 = is_bf16
        self._parameters = list(system.model.train().parameters())
        self._adam = torch.optim.Adam(self._parameters, lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters)

    def step(self, batch: Batch) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._is_bf16):
            loss = self._loss(batch)
        (loss / len(batch.labels)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, _CLIP_NORM)
        self._adam.step()
        self._adam.zero_grad()


class Dragoman:
    """What `python -m dragoman_export train` learns with."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the network."""
        self.network = Transformer(config)
        self.model: nn.Module = BatchLoss(self.network, label_smoothing=_LABEL_SMOOTHING)

    def loss(self, batch: Batch) -> Tensor:
        """Return the summed loss."""
        return self.model(batch)  # type: ignore[no-any-return]


class PlainPyTorch:
    """`torch.nn.Transformer` between one embedding and its transpose, as tutorials use it."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the network; it drops attention weights and hidden activations as well, which cannot be turned off."""
        self._config = config
        self._dropout = nn.Dropout(config.dropout)
        self._positions = sinusoidal_positions(1024, config.d_model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # with pre-norm it has no fast path for inference
            transformer = nn.Transformer(
                config.d_model,
                config.num_heads,
                config.num_encoder_layers,
                config.num_decoder_layers,
                config.ffn_size,
                config.dropout,
                batch_first=True,
                norm_first=config.norm == "pre",
            )
        embedding = nn.Embedding(config.vocabulary_size, config.d_model)
        self.model: nn.Module = nn.ModuleDict({"embedding": embedding, "transformer": transformer})

    def loss(self, batch: Batch) -> Tensor:
        """Return the summed loss; like most uses of it, this projects padding to the vocabulary, too."""
        embedding, transformer = self.model["embedding"], self.model["transformer"]  # type: ignore[index]
        is_padding = None if batch.source_mask is None else ~batch.source_mask
        length = batch.target_ids.size(1)
        states = transformer(
            self._embed(batch.source_ids),
            self._embed(batch.target_ids),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=is_padding,
            memory_key_padding_mask=is_padding,
            tgt_is_causal=True,
        )
        logits = nn.functional.linear(states, embedding.weight).flatten(0, 1)
        with torch.autocast("cpu", enabled=False):
            labels, smoothing = padded_labels(batch).flatten(), _LABEL_SMOOTHING
            return nn.functional.cross_entropy(
                logits.float(), labels, reduction="sum", ignore_index=self._config.pad_id, label_smoothing=smoothing
            )

    def _embed(self, token_ids: Tensor) -> Tensor:
        embedded = self.model["embedding"](token_ids) * math.sqrt(self._config.d_model)  # type: ignore[index]
        return self._dropout(embedded + self._positions[: token_ids.size(1)])  # type: ignore[no-any-return]


class JoeyNMT:
    """JoeyNMT 2.3 (Kreutzer et al. 2019, arXiv:1907.12484)."""

    def __init__(self, config: ModelConfig) -> None:
        """Make the network by its own builder."""
        build_model = importlib.import_module("joeynmt.model").build_model
        make_vocabulary = importlib.import_module("joeynmt.vocabulary").Vocabulary
        names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
        ids: dict[str, Any] = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3, "lang_tags": []}
        words = make_vocabulary(
            [f"w{index}" for index in range(4, config.vocabulary_size)], SimpleNamespace(**names, **ids)
        )
        self._own_ids = torch.arange(config.vocabulary_size)  # by ours: padding, BOS, EOS, unknown are 0 to 3
        self._own_ids[:4] = torch.tensor([1, 2, 3, 0])
        self._pad_id = 1
        stack: dict[str, Any] = {
            "type": "transformer",
            "num_heads": config.num_heads,
            "embeddings": {"embedding_dim": config.d_model, "scale": True, "dropout": config.dropout},
            "hidden_size": config.d_model,
            "ff_size": config.ffn_size,
            "dropout": config.dropout,
            "layer_norm": config.norm,
        }
        stacks = {
            "encoder": {**stack, "num_layers": config.num_encoder_layers},
            "decoder": {**stack, "num_layers": config.num_decoder_layers},
        }
        self.model: Any = build_model({**stacks, "tied_embeddings": True, "tied_softmax": True}, words, words)
        self.model.loss_function = ("crossentropy", _LABEL_SMOOTHING)

    def loss(self, batch: Batch) -> Tensor:
        """Return the summed loss."""
        source, inputs, labels = (
            self._own_ids[token_ids] for token_ids in (batch.source_ids, batch.target_ids, padded_labels(batch))
        )
        source_mask, target_mask = (torch.ne(token_ids, self._pad_id) for token_ids in (source, labels))
        loss, *_ = self.model(
            return_type="loss",
            src=source,
            src_length=source_mask.sum(dim=1),
            src_mask=source_mask[:, None],
            trg_input=inputs,
            trg=labels,
            trg_mask=target_mask[:, None],
        )
        return loss  # type: ignore[no-any-return]


def padded_labels(batch: Batch) -> Tensor:
    """Return the tokens to predict as [B, T], padding as 0."""
    labels = torch.zeros(batch.target_ids.numel(), dtype=torch.int64)
    labels[batch.label_positions] = batch.labels
    return labels.view_as(batch.target_ids)
