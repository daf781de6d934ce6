"""A model of another system is imported, exported, verified and served."""

import asyncio
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from dragoman.v1 import translation_pb2 as pb
from dragoman_export.__main__ import main
from dragoman_export.importers.marian import read_marian
from dragoman_export.importers.portable import load_weights
from dragoman_export.importers.reference_models.checks import open_original
from dragoman_export.importers.reference_models.huggingface import HuggingFaceOriginal
from dragoman_export.model.transformer import Transformer
from dragoman_service.__main__ import main as dragoman
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.text.tokenizer import open_tokenizer
from tests.ctranslate2_models import save_spec
from tests.foreign_checkpoints.marian import save_marian_directory
from tests.foreign_models import save_bart, save_m2m100, save_marian, save_nllb
from tests.integration.running_server import running_server
from tests.tiny_bundle import SENTENCES

pytestmark = pytest.mark.slow

# Texts that the service passes on as they are: the tokenizers can spell the letters, and no ending is corrected.
TEXTS = (
    *(sentence.rstrip(".") for sentence in SENTENCES[:4]),
    "the old man reads a letter",
    "She rides a bicycle in the morning",
    "the train leaves the town",
    "a red ball",
)
_LONGEST = 24
_SEARCH = SearchConfig(beam_size=4, max_target_tokens=_LONGEST, min_target_tokens=4)
_OPTIONS = pb.DecodingOptions(
    beam_size=4,
    max_target_tokens=_LONGEST,
    min_target_tokens=4,
    length_penalty=0.0,
    repetition_guard=False,
    split_sentences=False,
    return_tokens=True,
    return_alignment=True,
)


_SAVE: Mapping[str, Callable[..., Any]] = {"marian": save_marian, "m2m100": save_m2m100, "bart": save_bart}


@pytest.fixture(scope="module", params=["marian", "m2m100", "bart"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The original in `original`, the import in `ours`, a bundle in `models/tiny/1`, text in `text.tsv`."""
    path = tmp_path_factory.mktemp(request.param)
    tags = ("en", "de") if request.param == "m2m100" else ()
    save = _SAVE[request.param]
    save(path / "original")
    flags = [word for side, tag in zip(("source", "target"), tags, strict=False) for word in (f"--{side}-tag", tag)]
    import_calibrated(path, "huggingface", *flags)
    return path


def import_model(directory: Path, system: str, *flags: str) -> None:
    places = [str(directory / "original"), "--from", system, "--output", str(directory / "ours")]
    assert main(["import", *places, *flags]) == 0


def write_bundle(directory: Path, *flags: str) -> None:
    """Write `models/tiny/1`."""
    places = ["--checkpoint", str(directory / "ours"), "--output", str(directory / "models" / "tiny" / "1")]
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    assert main(["bundle", *places, *named, *flags]) == 0


def import_calibrated(directory: Path, system: str, *flags: str) -> None:
    """Import a model and write a bundle in two precisions and `text.tsv`."""
    text = directory / "text.tsv"
    lines = [f"{source}\t{target}\n" for source, target in zip(SENTENCES[:4], SENTENCES[4:], strict=True)]
    text.write_text("".join(lines), encoding="utf-8")
    import_model(directory, system, *flags)
    write_bundle(directory, "--precisions", "int8,fp32", "--calibration", str(text))


def _verify(directory: Path) -> int:
    bundle, ours, original = directory / "models" / "tiny" / "1", directory / "ours", directory / "original"
    compared = ["--checkpoint", str(ours), "--original", str(original), "--data", str(directory / "text.tsv")]
    return main(["verify", "--bundle", str(bundle), *compared])


def test_verify_passes_for_the_original(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = _verify(directory)

    message = capsys.readouterr().out
    assert status == 0
    for claim in ("token ids = original", "ONNX fp32 = original", "beam 4 = original"):
        assert re.search(rf"^{claim} .* yes ", message, re.MULTILINE)


def test_verify_fails_for_another_model(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = next(save for name, save in _SAVE.items() if directory.name.startswith(name))
    save(tmp_path / "original", seed=4)
    for name in ("ours", "models", "text.tsv"):
        (tmp_path / name).symlink_to(directory / name)

    status = _verify(tmp_path)

    assert status == 1
    assert "FAILED: ONNX fp32 = original" in capsys.readouterr().err


def _without_capital(texts: Iterable[str]) -> list[str]:
    # The server begins a translation with a capital like its source.
    return [text[:1].lower() + text[1:] for text in texts]


async def test_served_translations_equal_the_original(directory: Path) -> None:
    tokenizer = open_tokenizer(open_bundle(directory / "models" / "tiny" / "1"))
    original = HuggingFaceOriginal(directory / "original", tokenizer)
    expected = [original.search(original.encode(text), _SEARCH) for text in TEXTS]

    async with running_server(directory / "models") as server:
        response = await server.translate(*TEXTS, options=_OPTIONS)

    hypotheses = [translation.hypotheses[0] for translation in response.translations]
    assert [list(each.tokens) for each in hypotheses] == [tokenizer.pieces(ids) for ids in expected]
    texts = [original.decode(ids[len(tokenizer.target_prefix) :]) for ids in expected]
    texts = [text.lstrip(" ") for text in texts]  # BART's may begin with a space
    assert _without_capital(each.text for each in hypotheses) == _without_capital(texts)


async def test_ctranslate2_model_is_imported_verified_and_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_spec(tmp_path / "original", tied="all", quantization="int8")
    import_calibrated(tmp_path, "ctranslate2")
    assert _verify(tmp_path) == 0
    message = capsys.readouterr().out
    for claim in ("int8 agrees with fp32 at", "token ids = original .* yes", "beam 4 = original .* yes"):
        assert re.search(claim, message)
    bundle = open_bundle(tmp_path / "models" / "tiny" / "1")
    tokenizer = open_tokenizer(bundle)
    original = open_original(tmp_path / "original", bundle, tokenizer)
    texts = TEXTS[1:]  # the first translation has no end within the limit of tokens
    search = SearchConfig(beam_size=4, max_target_tokens=_LONGEST, min_target_tokens=1)
    expected = [original.search(original.encode(text), search) for text in texts]
    options = pb.DecodingOptions()
    options.CopyFrom(_OPTIONS)
    options.min_target_tokens = 1

    async with running_server(tmp_path / "models") as server:
        response = await server.translate(*texts, options=options)

    hypotheses = [translation.hypotheses[0] for translation in response.translations]
    assert [list(each.tokens) for each in hypotheses] == [tokenizer.pieces(ids) for ids in expected]
    assert _without_capital(each.text for each in hypotheses) == _without_capital(
        tokenizer.decode(ids).strip() for ids in expected
    )
    assert len({each.text for each in hypotheses}) > 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied-embeddings-all": False, "tied-embeddings": True},
        {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"},
    ],
)
async def test_marian_model_is_imported_and_served(tmp_path: Path, options: Mapping[str, Any]) -> None:
    path = save_marian_directory(tmp_path / "original", options)
    import_model(tmp_path, "marian")
    write_bundle(tmp_path, "--precisions", "fp32")
    imported = read_marian(path)
    network = load_weights(imported.config, imported.weights, path)
    tokenizer = open_tokenizer(open_bundle(tmp_path / "models" / "tiny" / "1"))

    async with running_server(tmp_path / "models") as server:
        decoding = pb.DecodingOptions()
        decoding.CopyFrom(_OPTIONS)
        decoding.beam_size = 1
        decoding.min_target_tokens = 1
        response = await server.translate(*TEXTS, options=decoding)

    hypotheses = [translation.hypotheses[0] for translation in response.translations]
    expected = [_greedy(network, tokenizer.encode_pair(text, "")[0]) for text in TEXTS]
    assert [list(each.tokens) for each in hypotheses] == [tokenizer.pieces(ids) for ids in expected]


@torch.inference_mode()
def _greedy(network: Transformer, source_ids: Sequence[int]) -> list[int]:
    config = network.config
    cache = network.start(network.encode(torch.tensor([source_ids]), None), None)
    token, target = config.start_id, []
    for position in range(_LONGEST):
        log_probs = network.step(torch.tensor([token]), position, cache)[0]
        log_probs[[config.unk_id, config.start_id]] = -math.inf
        token = int(log_probs.argmax())
        if token == config.eos_id:
            break
        target.append(token)
    return target


@pytest.mark.parametrize(
    ("save", "flags", "served", "pairs"),
    [
        (save_nllb, (), "en-de, en-fr, de-en", [("en", "de"), ("en", "fr"), ("de", "en"), ("fr", "de")]),
        (save_m2m100, ("--source-languages", "en,zh,de"), "[en zh de]-[af", [("en", "de"), ("zh", "fr"), ("de", "ja")]),
        (partial(save_marian, tags=(">>deu<<", ">>fra<<")), (), "en-de, en-fr", [("en", "de"), ("en", "fr")]),
    ],
)
async def test_language_pairs_share_a_batch_and_equal_the_original(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    save: Callable[[Path], object],
    flags: tuple[str, ...],
    served: str,
    pairs: list[tuple[str, str]],
) -> None:
    save(tmp_path / "original")
    import_model(tmp_path, "huggingface", *flags)
    write_bundle(tmp_path, "--precisions", "fp32")
    tokenizer = open_tokenizer(open_bundle(tmp_path / "models" / "tiny" / "1"))
    tokenizers = {pair: tokenizer.for_pair(*pair) for pair in pairs}
    originals = {pair: HuggingFaceOriginal(tmp_path / "original", tokenizers[pair]) for pair in pairs}

    async with running_server(tmp_path / "models") as server:
        requests = [
            pb.TranslateRequest(texts=TEXTS, source_language=source, target_language=target, options=_OPTIONS)
            for source, target in pairs
        ]
        alone = [await server.translation.Translate(request) for request in requests]
        together = await asyncio.gather(*(server.translation.Translate(request) for request in requests))
        with pytest.raises(grpc.aio.AioRpcError, match="en to tlh is not served here; available: "):
            await server.translate("Hello.", target_language="tlh")
        capsys.readouterr()
        assert await asyncio.to_thread(dragoman, ["models", "--target", f"127.0.0.1:{server.port}"]) == 0

    assert served in capsys.readouterr().out
    for pair, response, again in zip(pairs, together, alone, strict=True):
        assert response.translations == again.translations
        hypotheses = [translation.hypotheses[0] for translation in response.translations]
        expected = [originals[pair].search(originals[pair].encode(text), _SEARCH) for text in TEXTS]
        assert [list(each.tokens) for each in hypotheses] == [tokenizers[pair].pieces(ids) for ids in expected]
