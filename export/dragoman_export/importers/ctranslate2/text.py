"""Vocabularies and special tokens of CTranslate2 models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.binary import Binary
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.files import ForeignConfig, read_plain
from dragoman_export.importers.vocabulary_text import Vocabularies

# special tokens that versions before 6 store as variables, with their defaults
_STORED_TOKENS: Final = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Special tokens of a configuration, and which of them are added to sources."""

    unk: str
    bos: str
    eos: str
    start: str
    adds_bos: bool
    adds_eos: bool

    @classmethod
    def read(cls, directory: Path) -> "SpecialTokens":
        """Read the tokens of the model in a directory."""
        path = directory / "model.bin"
        binary = Binary.read(path)
        variables = Variables(binary.tensors, path, revision=binary.revision)
        return cls.take(read_settings(directory, variables, binary.version))

    @classmethod
    def take(cls, settings: ForeignConfig) -> "SpecialTokens":
        """Take the tokens from a configuration; ImportFormatError if the caller chooses the start token."""
        start = settings.take_optional("decoder_start_token", str)
        if start is None:
            raise ImportFormatError(
                f"{settings.path}: decoder_start_token is None: a start token chosen by the caller, such "
                "as a language tag, is not supported"
            )
        return cls(
            unk=settings.take("unk_token", str, default="<unk>"),
            bos=settings.take("bos_token", str, default="<s>"),
            eos=settings.take("eos_token", str, default="</s>"),
            start=start,
            adds_bos=settings.take("add_source_bos", bool, default=False),
            adds_eos=settings.take("add_source_eos", bool, default=False),
        )


def read_settings(directory: Path, variables: Variables, version: int) -> ForeignConfig:
    """Return `config.json`, or the equivalent variables of older versions."""
    path = directory / "config.json"
    if version >= 6:
        return ForeignConfig.read(path)
    tokens = {name: variables.text(name, default) for name, default in _STORED_TOKENS.items()}
    has_start = not variables.attribute("user_decoder_start_tokens", 0)
    start = tokens["bos_token" if variables.attribute("with_target_bos", 1) else "eos_token"]
    return ForeignConfig(
        variables.path,
        {
            **tokens,
            "add_source_bos": bool(variables.attribute("with_source_bos", 0)),
            "add_source_eos": bool(variables.attribute("with_source_eos", 0)),
            "decoder_start_token": start if has_start else None,
        },
    )


def read_vocabularies(directory: Path, unk: str) -> tuple[list[str], list[str]]:
    """Return the tokens of sources and targets by id."""
    for names in (("shared_vocabulary",) * 2, ("source_vocabulary", "target_vocabulary")):
        found = [
            next((path for suffix in ("json", "txt") if (path := directory / f"{name}.{suffix}").exists()), None)
            for name in names
        ]
        if found[0] is not None and found[1] is not None:
            source, target = (_read_vocabulary(path, unk) for path in (found[0], found[1]))
            return source, target
    raise ImportFormatError(
        f"{directory} has neither shared_vocabulary nor source_ and target_vocabulary, .json or .txt"
    )


def _read_vocabulary(path: Path, unk: str) -> list[str]:
    # Like CTranslate2, appends the unknown token if it is missing.
    try:
        text = read_plain(path).decode()
        tokens = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise ImportFormatError(f"{path} contains no tokens: {error}") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ImportFormatError(f"{path} is not a list of tokens")
    return tokens if unk in tokens else [*tokens, unk]


def find_token(pieces: Sequence[str | None], token: str, directory: Path) -> int:
    """Return the id of a token; ImportFormatError if it is missing."""
    if token not in pieces:
        raise ImportFormatError(f"{directory}: the vocabulary has no {token}")
    return pieces.index(token)


def sources_end_with_eos(
    tokens: SpecialTokens, wanted: str | None, vocabularies: Vocabularies, settings: Path, *, reason: str
) -> bool:
    """Return whether sources end with EOS; ImportFormatError if unknown, or if `wanted` contradicts the model.

    Args:
        tokens: of the file `settings`.
        wanted: `yes`, `no`, or None if not given.
        vocabularies: of the model.
        settings: file of the configuration.
        reason: type of the model if its sources always end with EOS, otherwise empty.
    """
    if wanted is not None and tokens.adds_eos:
        raise ImportFormatError(f"{settings}: add_source_eos is True: remove --source-eos")
    if wanted == "no" and reason:
        raise ImportFormatError(f"{settings.parent}: sources of a {reason} end with EOS: remove --source-eos no")
    is_opennmt = "<blank>" in vocabularies.target and not reason  # its configuration is complete
    if wanted == "yes" and is_opennmt and tokens.start != tokens.eos:
        raise ImportFormatError(
            f"{settings}: add_source_eos is False and the vocabulary has <blank>, as in models of OpenNMT, whose "
            "sources end without EOS: remove --source-eos yes"
        )
    if wanted is not None:
        return wanted == "yes"
    if tokens.adds_eos or reason:
        return True
    if is_opennmt:
        return False
    raise ImportFormatError(
        f"{settings}: add_source_eos is False, but callers of CTranslate2 may add EOS: give --source-eos "
        "yes (models converted from Hugging Face transformers) or no"
    )
