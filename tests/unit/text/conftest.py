from pathlib import Path

import pytest

from tests.unit.text.text_fakes import train_sentencepiece

_SENTENCES = ("The quick brown fox jumps over the lazy dog.", "Der schnelle braune Fuchs springt.", "How are you?")


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny vocabulary with byte fallback and the special ids of bundles."""
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.model"
    path.write_bytes(
        train_sentencepiece(_SENTENCES, vocab_size=320, byte_fallback=True, pad_id=0, bos_id=1, eos_id=2, unk_id=3)
    )
    return path
