import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman_export.bundle_extension import add_shortlist
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry, open_bundle
from dragoman_service.errors import BundleError
from dragoman_service.runtimes.shortlist import Shortlist, open_shortlist
from tests.tiny_bundle import build_tiny_bundle

V = 200


def make_shortlist(
    entries: dict[int, dict[int, float]],
    *,
    shares: dict[int, float] | None = None,
    threshold: float = 0.1,
    max_size: int = 128,
    size: int = V,
) -> Shortlist:
    """Build a shortlist from the probabilities of targets by source, best first."""
    all_shares = np.zeros(size, np.float32)
    all_shares[list(shares or {})] = list((shares or {}).values())
    flat = [(target, probability) for source in range(size) for target, probability in entries.get(source, {}).items()]
    counts = [len(entries.get(source, {})) for source in range(size)]
    return Shortlist(
        threshold=threshold,
        max_size=max_size,
        begins=np.cumsum([0, *counts]).astype(np.int32),
        token_ids=np.array([target for target, _ in flat], np.int32),
        shares=all_shares,
        probabilities=np.array([probability for _, probability in flat], np.float16),
    )


def listed(shortlist: Shortlist, *source_ids: int) -> set[int]:
    tokens = shortlist.of(source_ids)
    assert tokens.dtype == np.int32
    assert (np.diff(tokens) > 0).all()
    return set(tokens.tolist())


CONTENT = make_shortlist({1: {150: 0.5}}).to_bytes()
NOT_A_NUMBER = np.array([np.nan], "<f4").tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a shortlist"),
        (b"DRGMSL02" + CONTENT[8:], "not a shortlist"),
        (CONTENT[:-1], "too few for 200 tokens and 1 entries"),
        (CONTENT + b"\0", r"expected \d+"),
        (CONTENT[:8] + b"\xff" * 8 + CONTENT[16:], "too few for"),
        (CONTENT[:16] + b"\x41" + CONTENT[17:], ": max_size$"),
        (CONTENT[:20] + NOT_A_NUMBER + CONTENT[24:], ": threshold$"),
        (CONTENT[:24] + b"\x01" + CONTENT[25:], ": begins$"),
        (CONTENT[: 24 + 4 * 201] + b"\xc8" + CONTENT[25 + 4 * 201 :], ": token_ids$"),
        (CONTENT[: 24 + 4 * 202] + NOT_A_NUMBER + CONTENT[28 + 4 * 202 :], ": shares$"),
        (CONTENT[:-2] + b"\0\0", ": probabilities$"),
    ],
)
def test_damaged_file_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shortlist.from_bytes(content)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundles")
    bundle = build_tiny_bundle(directory / "plain", precisions=("fp32",))
    size = bundle.manifest.architecture.vocabulary_size
    add_shortlist(directory / "plain", directory / "listed", make_shortlist({1: {2: 0.5}}, size=size))
    return directory


def test_shortlist_of_bundle_is_read(directory: Path) -> None:
    shortlist = open_shortlist(open_bundle(directory / "listed"))

    assert shortlist.scores([1])[2] == 0.5


def test_larger_source_vocabulary_is_rejected(tmp_path: Path) -> None:
    variant: dict[str, Any] = {"tied_embeddings": "decoder", "source_vocabulary_size": 333}
    build_tiny_bundle(tmp_path / "plain", precisions=("fp32",), **variant)

    with pytest.raises(BundleError, match="vocabulary size of sources is 320, expected 333"):
        add_shortlist(tmp_path / "plain", tmp_path / "listed", make_shortlist({}, size=320))


def test_error_of_missing_shortlist_contains_the_command(directory: Path) -> None:
    with pytest.raises(BundleError, match="shortlist is None, expected a file"):
        open_shortlist(open_bundle(directory / "plain"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_shortlist({}).to_bytes(), "shortlist.bin: vocabulary size is 200, expected 320"),
        (b"something else", "shortlist.bin: content is not a shortlist"),
    ],
)
def test_shortlist_of_another_vocabulary_or_format_is_rejected(directory: Path, content: bytes, message: str) -> None:
    path = directory / "listed" / "shortlist.bin"
    whole = path.read_bytes()
    bundle = open_bundle(directory / "listed")
    path.write_bytes(content)

    with pytest.raises(BundleError, match=message):
        open_shortlist(bundle)

    path.write_bytes(whole)


def test_shortlist_has_a_checksum(directory: Path) -> None:
    manifest = json.loads((directory / "listed" / MANIFEST_NAME).read_text(encoding="utf-8"))

    entry = file_entry(directory / "listed" / "shortlist.bin")

    assert manifest["shortlist"] == "shortlist.bin"
    assert manifest["files"]["shortlist.bin"] == entry.model_dump()
