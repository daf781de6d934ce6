"""Takes the network out of the variables of a model."""

import math
from collections.abc import Sequence
from typing import Any, Final, get_args

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.portable import MAX_TOKENS, check_sizes
from dragoman_export.importers.vocabulary_text import Vocabularies, arranged
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.layers import sinusoidal_positions
from dragoman_service.bundle.architecture import SinusoidLayout

_ACTIVATIONS: Final = {0: "relu", 2: "swish", 3: "gelu"}
_OTHER_ACTIVATIONS: Final = {1: "GELU by tanh", 4: "GELU by sigmoid", 5: "tanh", 6: "sigmoid"}

_SAME_POSITIONS: Final = 1e-5, 1e-6
"""Largest difference of stored sinusoids from computed ones, and what each position adds to it by the rounding of its
angle. Those that were stored as halves differ by more, and are taken as they are."""
_MAX_POSITIONS: Final = 1024
"""Rows kept of such a table, and of learned ones."""
_OFFSETS: Final = range(4)
"""Positions at which stored sinusoids may begin."""

_NO_LOGIT: Final = -500.0
"""Bias of a token that was not in the vocabulary: its probability is zero, and log-probabilities of that size are still
precise enough for `verify`."""


class Network:
    """Takes the network out of the variables."""

    def __init__(
        self,
        variables: Variables,
        vocabularies: Vocabularies,
        epsilon: float | None,
        *,
        has_positions: bool = True,
    ) -> None:
        """Read everything.

        Args:
            variables: of the model.
            vocabularies: of both sides.
            epsilon: of the normalisations; None: the configuration leaves it open.
            has_positions: whether sinusoids, beginning with the position 1, are added where no table is stored and no
                head is rotated.
        """
        self._variables = variables
        self._vocabularies = vocabularies
        self.weights: dict[str, Tensor] = {}
        """By the names of `Transformer`."""
        self.num_positions = MAX_TOKENS
        """Longest sequence."""
        self._facts: dict[str, Any] = {}
        """Of `ModelConfig`, as far as they are known."""
        self._read_tables()
        for stack in ("encoder", "decoder"):
            self._read_stack(stack)
        self._read_positions(has_positions=has_positions)
        default = 1e-5 if self._facts["norm_kind"] == "layer" else 1e-6
        self._facts["norm_epsilon"] = default if epsilon is None else epsilon
        variables.attribute("encoder/multi_query_attention", 0)  # as num_heads_kv says
        variables.require("decoder/alibi", 0)
        variables.require("decoder/scale_outputs", 1)
        for name in ("alibi_use_positive_positions", "scale_alibi", "alignment_layer", "alignment_heads"):
            variables.attribute(f"decoder/{name}", 0)  # of linear biases, and of the attention that is returned
        variables.finish()

    def config(self) -> ModelConfig:
        """Return what the network is; ImportFormatError if it is larger than a bundle can describe."""
        ids = self._vocabularies
        special: dict[str, Any] = {
            "pad_id": ids.pad_id,
            "bos_id": ids.start_id,
            "eos_id": ids.eos_id,
            "unk_id": ids.unk_id,
        }
        config = ModelConfig(**self._facts, **special)
        check_sizes(config, self._variables.path)
        return config

    def _fact(self, name: str, value: object, where: str) -> None:
        """Note what holds for the whole network; ImportFormatError if it is not so everywhere."""
        if self._facts.setdefault(name, value) != value:
            raise ImportFormatError(
                f"{self._variables.path}: {name} of {where} is {value}, of what precedes {self._facts[name]}: expected "
                "the same everywhere"
            )

    def _put(self, name: str, weight: Tensor) -> None:
        self.weights[name] = weight.clone()  # variables may share what they hold, files of safetensors must not

    def _read_tables(self) -> None:
        """Read embeddings and projection, and arrange them by our token ids."""
        ids = self._vocabularies
        source = self._table("encoder/embeddings_0/weight", ids.source_rows)
        target = self._table("decoder/embeddings/weight", ids.target_rows)
        projection = self._table("decoder/projection/weight", ids.target_rows)
        is_tied = torch.equal(target, projection)
        tied = "none" if not is_tied else "all" if torch.equal(source, target) else "decoder"
        tables = {"all": {}, "decoder": {"encoder.embedding": source}}
        tables["none"] = {**tables["decoder"], "projection": projection}
        self.weights = {f"{name}.weight": table for name, table in {"embedding": target, **tables[tied]}.items()}
        has_bias = self._variables.has("decoder/projection/bias")
        if has_bias or None in ids.target_rows:
            stored = self._variables.array("decoder/projection/bias") if has_bias else torch.zeros(len(projection))
            bias = arranged(stored, ids.target_rows)
            bias[[row is None for row in ids.target_rows]] = _NO_LOGIT
            self.weights["projection.bias"] = bias
        self._facts = {
            "vocabulary_size": len(target),
            "source_vocabulary_size": None if len(source) == len(target) else len(source),
            "d_model": target.shape[1],
            "tied_embeddings": tied,
            "projection_bias": "projection.bias" in self.weights,
        }

    def _table(self, name: str, rows: Sequence[int | None]) -> Tensor:
        table = self._variables.array(name)
        num_tokens = sum(row is not None for row in rows)
        if table.dim() != 2 or len(table) != num_tokens:
            found = f"the shape {list(table.shape)}"
            raise ImportFormatError(f"{self._variables.path}: {name} has {found}: expected {num_tokens} rows")
        return arranged(table, rows)

    def _read_stack(self, stack: str) -> None:
        variables = self._variables
        num_heads = int(variables.attribute(f"{stack}/num_heads", variables.default_num_heads))
        if num_heads < 1:
            raise ImportFormatError(f"{variables.path}: {stack}/num_heads is {num_heads}: expected at least 1")
        self._fact("num_heads", num_heads, stack)
        self._fact("norm", "pre" if variables.attribute(f"{stack}/pre_norm", 1) else "post", stack)
        self._fact("embedding_norm", variables.has(f"{stack}/layernorm_embedding/gamma"), stack)
        self._fact("final_norm", variables.has(f"{stack}/layer_norm/gamma"), stack)
        self._fact("scale_embeddings", self._scales(stack), stack)
        variables.attribute(f"{stack}/embeddings_merge", 0)  # of several embeddings of one token
        variables.require(f"{stack}/sliding_window", 0)
        activation = int(variables.attribute(f"{stack}/activation", 0))
        if activation not in _ACTIVATIONS:
            found = f"{activation} ({_OTHER_ACTIVATIONS.get(activation, 'unknown')})"
            known = ", ".join(f"{number} ({name})" for number, name in _ACTIVATIONS.items())
            raise ImportFormatError(f"{variables.path}: {stack}/activation is {found}: expected {known}")
        num_layers = variables.num_layers(stack)
        self._facts[f"num_{stack}_layers"] = num_layers
        for layer in range(num_layers):
            theirs, ours = f"{stack}/layer_{layer}", f"{stack}.layers.{layer}"
            self._read_attention(f"{theirs}/self_attention", f"{ours}.self_attention", is_self=True)
            if stack == "decoder":
                self._read_attention(f"{theirs}/attention", f"{ours}.cross_attention", is_self=False)
            self._read_feed_forward(f"{theirs}/ffn", f"{ours}.feed_forward", _ACTIVATIONS[activation])
        if self._facts["embedding_norm"]:
            self._read_norm(f"{stack}/layernorm_embedding", f"{stack}.embedding_norm")
        if self._facts["final_norm"]:
            self._read_norm(f"{stack}/layer_norm", f"{stack}.norm")

    def _scales(self, stack: str) -> bool:
        """Return whether embeddings are multiplied by sqrt(d_model): a flag, or the factor itself."""
        old = self._variables.take(f"{stack}/embeddings_0/multiply_by_sqrt_depth")
        stored = self._variables.take(f"{stack}/scale_embeddings")
        flag = old if stored is None else stored
        if flag is None or flag.dtype == torch.int8:
            return flag is None or bool(flag)
        factor = float(flag)
        is_scaled = math.isclose(factor, math.sqrt(self._facts["d_model"]), rel_tol=1e-3)
        if not is_scaled and factor != 1:
            expected = f"1 or sqrt({self._facts['d_model']})"
            raise ImportFormatError(
                f"{self._variables.path}: {stack}/scale_embeddings is {factor:g}: expected {expected}"
            )
        return is_scaled

    def _read_attention(self, theirs: str, ours: str, *, is_self: bool) -> None:
        """Read one attention block, of which queries, keys and values are stored as one matrix, or keys and values."""
        variables, num_heads = self._variables, int(self._facts["num_heads"])
        head_size = int(variables.attribute(f"{theirs}/head_dim", self._facts["d_model"] // num_heads))
        num_kv_heads = int(variables.attribute(f"{theirs}/num_heads_kv", num_heads))
        if num_kv_heads < 1 or num_heads % num_kv_heads or head_size < 1:
            raise ImportFormatError(
                f"{variables.path}: {theirs} has {num_heads} heads of {head_size}, {num_kv_heads} of keys"
            )
        has_pairs = is_self and self._read_rotation(theirs, head_size)
        self._fact("head_dim", None if head_size * num_heads == self._facts["d_model"] else head_size, theirs)
        self._fact("num_kv_heads", None if num_kv_heads == num_heads else num_kv_heads, theirs)
        variables.require(f"{theirs}/queries_scale", head_size**-0.5)
        sizes = {"query": num_heads * head_size, "key": num_kv_heads * head_size, "value": num_kv_heads * head_size}
        groups = [["query", "key", "value"]] if is_self else [["query"], ["key", "value"]]
        # Query head h looks at keys h // group of theirs, and h modulo the number of ours.
        group = num_heads // num_kv_heads
        order = [head % num_kv_heads * group + head // num_kv_heads for head in range(num_heads)]
        for index, names in enumerate(groups):
            rows = [sizes[name] for name in names]
            for part, fused in self._linear(f"{theirs}/linear_{index}").items():
                if len(fused) != sum(rows):
                    found = f"{len(fused)} rows: expected {sum(rows)}"
                    raise ImportFormatError(f"{variables.path}: {theirs}/linear_{index}/{part} has {found}")
                for name, weight in zip(names, torch.split(fused, rows), strict=True):
                    by_head = weight.reshape(-1, head_size, *weight.shape[1:])
                    if name == "query":
                        by_head = by_head[order]
                    if has_pairs and name != "value":
                        by_head = _in_halves(by_head)
                    self._put(f"{ours}.{name}.{part}", by_head.reshape(weight.shape))
        output = self._linear(f"{theirs}/linear_{len(groups)}")
        columns = torch.arange(num_heads * head_size).reshape(num_heads, head_size)[order].flatten()
        if output["weight"].shape[1] != len(columns):
            raise ImportFormatError(
                f"{variables.path}: {theirs}/linear_{len(groups)}/weight does not have {len(columns)} columns"
            )
        self._put(f"{ours}.output.weight", output["weight"][:, columns])
        self._put(f"{ours}.output.bias", output["bias"])
        self._read_norm(f"{theirs}/layer_norm", f"{ours}_norm")

    def _read_rotation(self, theirs: str, head_size: int) -> bool:
        """Return whether what is rotated are pairs of neighbours within a head; ours are half a head apart.

        Heads are rotated as a whole, with the base 10000, or not at all; ImportFormatError for all else.
        """
        variables, is_rotary = self._variables, self._variables.has(f"{theirs}/rotary_dim")
        self._fact("rotary_positions", is_rotary, theirs)
        if not is_rotary:
            return False
        variables.require(f"{theirs}/rotary_dim", 0, head_size)
        variables.require(f"{theirs}/rotary_base", 10000)
        if head_size % 2:
            raise ImportFormatError(f"{variables.path}: {theirs} has heads of {head_size}: expected an even number")
        return bool(variables.attribute(f"{theirs}/rotary_interleave", 1))

    def _read_feed_forward(self, theirs: str, ours: str, activation: str) -> None:
        is_gated = self._variables.has(f"{theirs}/linear_0_noact/weight")
        if is_gated and activation != "swish":
            raise ImportFormatError(f"{self._variables.path}: {theirs} is gated by {activation}: expected swish")
        self._fact("activation", "swiglu" if is_gated else activation, theirs)
        names = {"outer": "linear_1", "inner": "linear_0_noact" if is_gated else "linear_0"}
        for name, stored in {**names, **({"gate": "linear_0"} if is_gated else {})}.items():
            for part, weight in self._linear(f"{theirs}/{stored}").items():
                self._put(f"{ours}.{name}.{part}", weight)
        self._fact("ffn_size", len(self.weights[f"{ours}.inner.weight"]), theirs)
        self._read_norm(f"{theirs}/layer_norm", f"{ours}_norm")

    def _linear(self, name: str) -> dict[str, Tensor]:
        """Return weight and bias of a product; the latter is zero where none is stored."""
        weight = self._variables.array(f"{name}/weight")
        if weight.dim() != 2:
            raise ImportFormatError(f"{self._variables.path}: {name}/weight has {weight.dim()} dimensions")
        has_bias = self._variables.has(f"{name}/bias")
        return {
            "weight": weight,
            "bias": self._variables.array(f"{name}/bias") if has_bias else weight.new_zeros(len(weight)),
        }

    def _read_norm(self, theirs: str, ours: str) -> None:
        is_layer = self._variables.has(f"{theirs}/beta")
        self._fact("norm_kind", "layer" if is_layer else "rms", theirs)
        self._put(f"{ours}.weight", self._variables.array(f"{theirs}/gamma"))
        if is_layer:
            self._put(f"{ours}.bias", self._variables.array(f"{theirs}/beta"))

    def _read_positions(self, *, has_positions: bool) -> None:
        """Read position encodings: sinusoids of some kind, whatever was learned, or what holds if none are stored."""
        if self._facts.pop("rotary_positions", False):
            self._facts["positions"] = "rotary"
            return
        names = {stack: f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")}
        stored = {stack: self._variables.array(name) for stack, name in names.items() if self._variables.has(name)}
        if len(stored) == 1:
            raise ImportFormatError(f"{self._variables.path}: {names[min(stored)]} without that of the other stack")
        if not stored and not has_positions:
            self._facts["positions"] = "none"
            return
        if not stored:
            self._facts |= {"positions": "sinusoidal", "sinusoid_layout": "fairseq", "position_offset": 1}
            return
        self.num_positions = min(len(table) for table in stored.values())
        tables = {stack: table[: self.num_positions] for stack, table in stored.items()}
        kinds = {_sinusoids(table, self._facts["d_model"]) for table in tables.values()}
        (kind, *others) = kinds
        if kind is not None and not others:
            self._facts |= {"positions": "sinusoidal", "sinusoid_layout": kind[0], "position_offset": kind[1]}
            return
        self.num_positions = min(self.num_positions, _MAX_POSITIONS)
        self._facts |= {"positions": "learned", "max_positions": self.num_positions}
        for stack, table in tables.items():
            self._put(f"{stack}.positions.weight", table[: self.num_positions])


def _in_halves(heads: Tensor) -> Tensor:
    """Return rows [H, D, ...] of queries or keys with pairs half a head apart that were neighbours."""
    return heads.reshape(len(heads), -1, 2, *heads.shape[2:]).transpose(1, 2).reshape(heads.shape)


def _sinusoids(table: Tensor, d_model: int) -> tuple[SinusoidLayout, int] | None:
    """Return layout and first position of a table of sinusoids; None if it is something else."""
    first, more = _SAME_POSITIONS
    tolerance = first + more * torch.arange(len(table))[:, None]
    for layout in get_args(SinusoidLayout):
        for offset in _OFFSETS:
            expected = sinusoidal_positions(len(table), d_model, offset=offset, layout=layout)
            if expected.shape == table.shape and bool(((table - expected).abs() <= tolerance).all()):
                return layout, offset
    return None
