"""Converts the variables of a model to a network."""

import math
from collections.abc import Sequence
from typing import Any, Final, get_args

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.huggingface_text import Text
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies, arranged, projection_bias
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.positions import sinusoidal_positions
from dragoman_service.bundle.architecture import SinusoidLayout

_ACTIVATIONS: Final = {0: "relu", 2: "swish", 3: "gelu"}
_OTHER_ACTIVATIONS: Final = {1: "GELU by tanh", 4: "GELU by sigmoid", 5: "tanh", 6: "sigmoid"}

# tolerance between stored and computed sinusoids: constant, and per position (rounding of the angle); tables stored in
# half precision differ more and are imported as learned
_SAME_POSITIONS: Final = 1e-5, 1e-6
_MAX_POSITIONS: Final = 1024  # rows kept of such a table, and of learned ones
_OFFSETS: Final = range(4)  # possible first positions of stored sinusoids


class Network:
    """Converts variables to configuration and weights."""

    def __init__(
        self, variables: Variables, vocabularies: Vocabularies, epsilon: float | None, *, has_positions: bool = True
    ) -> None:
        """Convert all variables.

        `epsilon` None: default of the normalisation. `has_positions`: sinusoids from position 1 are added if there is
        neither a table nor rotation.
        """
        self._variables = variables
        self._vocabularies = vocabularies
        self.weights: dict[str, Tensor] = {}  # by the names of `Transformer`
        self.num_positions = MAX_TOKENS  # longest sequence
        self._facts: dict[str, Any] = {}  # fields of `ModelConfig` found so far
        self._read_tables()
        for stack in ("encoder", "decoder"):
            self._read_stack(stack)
        self._read_positions(has_positions=has_positions)
        default = 1e-5 if self._facts["norm_kind"] == "layer" else 1e-6
        self._facts["norm_epsilon"] = default if epsilon is None else epsilon
        variables.attribute("encoder/multi_query_attention", 0)  # num_heads_kv contains it
        variables.require("decoder/alibi", 0)
        variables.require("decoder/scale_outputs", 1)
        for name in ("alibi_use_positive_positions", "scale_alibi", "alignment_layer", "alignment_heads"):
            variables.attribute(f"decoder/{name}", 0)  # for ALiBi and returned attention
        variables.finish()

    def config(self) -> ModelConfig:
        """Return the configuration; ImportFormatError if it exceeds the limits of a bundle."""
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

    def imported(self, spm: SentencePieceFiles, *, most: int = MAX_TOKENS, **text: Any) -> ImportedModel:
        """Return the converted model; ImportFormatError if a tokenizer does not match its vocabulary.

        `most` is the longest sequence that the library supports, `text` are further fields of `Text`.
        """
        ids = self._vocabularies
        spm.check((ids.source, ids.target))
        source_model, target_model = spm.read()
        tokenizer = Text(
            model=target_model, source_model=source_model, pieces=ids.target, source_pieces=ids.source, **text
        )
        return ImportedModel(
            config=self.config(),
            max_tokens=min(self.num_positions, most),
            weights=self.weights,
            tokenizer=tokenizer.files(),
        )

    def _fact(self, name: str, value: object, where: str) -> None:
        # A property of the whole network, which must be equal everywhere.
        if self._facts.setdefault(name, value) != value:
            raise ImportFormatError(
                f"{self._variables.path}: {name} of {where} is {value}, elsewhere {self._facts[name]}: expected "
                "the same everywhere"
            )

    def _put(self, name: str, weight: Tensor) -> None:
        self.weights[name] = weight.clone()  # safetensors files must not contain shared storage

    def _read_tables(self) -> None:
        # Embeddings and projection by new token ids.
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
            self.weights["projection.bias"] = projection_bias(stored, ids.target_rows)
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
        variables.attribute(f"{stack}/embeddings_merge", 0)  # for several embeddings per token
        variables.require(f"{stack}/sliding_window", 0)
        activation = int(variables.attribute(f"{stack}/activation", 0))
        if activation not in _ACTIVATIONS:
            found = f"{activation} ({_OTHER_ACTIVATIONS.get(activation, 'unknown')})"
            known = ", ".join(f"{number} ({name})" for number, name in _ACTIVATIONS.items())
            raise ImportFormatError(f"{variables.path}: {stack}/activation is {found}: expected {known}")
        num_layers = variables.num_layers(stack)
        self._facts[f"num_{stack}_layers"] = num_layers
        for layer in range(num_layers):
            foreign, own = f"{stack}/layer_{layer}", f"{stack}.layers.{layer}"
            self._read_attention(f"{foreign}/self_attention", f"{own}.self_attention", is_self=True)
            if stack == "decoder":
                self._read_attention(f"{foreign}/attention", f"{own}.cross_attention", is_self=False)
            self._read_feed_forward(f"{foreign}/ffn", f"{own}.feed_forward", _ACTIVATIONS[activation])
        if self._facts["embedding_norm"]:
            self._read_norm(f"{stack}/layernorm_embedding", f"{stack}.embedding_norm")
        if self._facts["final_norm"]:
            self._read_norm(f"{stack}/layer_norm", f"{stack}.norm")

    def _scales(self, stack: str) -> bool:
        # Whether embeddings are multiplied by sqrt(d_model): a flag, or the factor itself.
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

    def _read_attention(self, foreign: str, own: str, *, is_self: bool) -> None:
        # Self-attention stores queries, keys and values as one matrix, cross-attention keys and values.
        variables, num_heads = self._variables, int(self._facts["num_heads"])
        head_size = int(variables.attribute(f"{foreign}/head_dim", self._facts["d_model"] // num_heads))
        num_kv_heads = int(variables.attribute(f"{foreign}/num_heads_kv", num_heads))
        if num_kv_heads < 1 or num_heads % num_kv_heads or head_size < 1:
            raise ImportFormatError(
                f"{variables.path}: {foreign} has {num_heads} heads of size {head_size} and {num_kv_heads} key heads"
            )
        has_pairs = is_self and self._read_rotation(foreign, head_size)
        self._fact("head_dim", None if head_size * num_heads == self._facts["d_model"] else head_size, foreign)
        self._fact("num_kv_heads", None if num_kv_heads == num_heads else num_kv_heads, foreign)
        variables.require(f"{foreign}/queries_scale", head_size**-0.5)
        sizes = {"query": num_heads * head_size, "key": num_kv_heads * head_size, "value": num_kv_heads * head_size}
        groups = [["query", "key", "value"]] if is_self else [["query"], ["key", "value"]]
        # Query head h uses keys h // group in CTranslate2, and h modulo their number here.
        group = num_heads // num_kv_heads
        order = [head % num_kv_heads * group + head // num_kv_heads for head in range(num_heads)]
        for index, names in enumerate(groups):
            rows = [sizes[name] for name in names]
            for part, fused in self._linear(f"{foreign}/linear_{index}").items():
                if len(fused) != sum(rows):
                    found = f"{len(fused)} rows: expected {sum(rows)}"
                    raise ImportFormatError(f"{variables.path}: {foreign}/linear_{index}/{part} has {found}")
                for name, weight in zip(names, torch.split(fused, rows), strict=True):
                    by_head = weight.reshape(-1, head_size, *weight.shape[1:])
                    if name == "query":
                        by_head = by_head[order]
                    if has_pairs and name != "value":
                        # adjacent pairs become pairs half a head apart
                        pairs = by_head.reshape(len(by_head), -1, 2, *by_head.shape[2:])
                        by_head = pairs.transpose(1, 2).reshape(by_head.shape)
                    self._put(f"{own}.{name}.{part}", by_head.reshape(weight.shape))
        output = self._linear(f"{foreign}/linear_{len(groups)}")
        columns = torch.arange(num_heads * head_size).reshape(num_heads, head_size)[order].flatten()
        if output["weight"].shape[1] != len(columns):
            raise ImportFormatError(
                f"{variables.path}: {foreign}/linear_{len(groups)}/weight does not have {len(columns)} columns"
            )
        self._put(f"{own}.output.weight", output["weight"][:, columns])
        self._put(f"{own}.output.bias", output["bias"])
        self._read_norm(f"{foreign}/layer_norm", f"{own}_norm")

    def _read_rotation(self, foreign: str, head_size: int) -> bool:
        # Whether rotated pairs are adjacent; in `Transformer` they are half a head apart. Only whole heads with base
        # 10000 are supported.
        variables, is_rotary = self._variables, self._variables.has(f"{foreign}/rotary_dim")
        self._fact("rotary_positions", is_rotary, foreign)
        if not is_rotary:
            return False
        variables.require(f"{foreign}/rotary_dim", 0, head_size)
        variables.require(f"{foreign}/rotary_base", 10000)
        if head_size % 2:
            raise ImportFormatError(f"{variables.path}: {foreign} has head size {head_size}: expected an even number")
        return bool(variables.attribute(f"{foreign}/rotary_interleave", 1))

    def _read_feed_forward(self, foreign: str, own: str, activation: str) -> None:
        is_gated = self._variables.has(f"{foreign}/linear_0_noact/weight")
        if is_gated and activation != "swish":
            raise ImportFormatError(f"{self._variables.path}: {foreign} is gated by {activation}: expected swish")
        self._fact("activation", "swiglu" if is_gated else activation, foreign)
        names = {"outer": "linear_1", "inner": "linear_0_noact" if is_gated else "linear_0"}
        for name, stored in {**names, **({"gate": "linear_0"} if is_gated else {})}.items():
            for part, weight in self._linear(f"{foreign}/{stored}").items():
                self._put(f"{own}.{name}.{part}", weight)
        self._fact("ffn_size", len(self.weights[f"{own}.inner.weight"]), foreign)
        self._read_norm(f"{foreign}/layer_norm", f"{own}_norm")

    def _linear(self, name: str) -> dict[str, Tensor]:
        # Weight and bias of a product; a missing bias is zero.
        weight = self._variables.array(f"{name}/weight")
        if weight.dim() != 2:
            raise ImportFormatError(f"{self._variables.path}: {name}/weight has {weight.dim()} dimensions")
        has_bias = self._variables.has(f"{name}/bias")
        return {
            "weight": weight,
            "bias": self._variables.array(f"{name}/bias") if has_bias else weight.new_zeros(len(weight)),
        }

    def _read_norm(self, foreign: str, own: str) -> None:
        is_layer = self._variables.has(f"{foreign}/beta")
        self._fact("norm_kind", "layer" if is_layer else "rms", foreign)
        self._put(f"{own}.weight", self._variables.array(f"{foreign}/gamma"))
        if is_layer:
            self._put(f"{own}.bias", self._variables.array(f"{foreign}/beta"))

    def _read_positions(self, *, has_positions: bool) -> None:
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


def _sinusoids(table: Tensor, d_model: int) -> tuple[SinusoidLayout, int] | None:
    # Layout and first position of a table of sinusoids; None if it is something else.
    first, more = _SAME_POSITIONS
    tolerance = first + more * torch.arange(len(table))[:, None]
    for layout in get_args(SinusoidLayout):
        for offset in _OFFSETS:
            expected = torch.from_numpy(sinusoidal_positions(len(table), d_model, offset=offset, layout=layout))
            if expected.shape == table.shape and bool(((table - expected).abs() <= tolerance).all()):
                return layout, offset
    return None
