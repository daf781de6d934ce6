import os
import socket
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from dragoman_service.bundle.files import MANIFEST_NAME, CheckedFile, load_manifest, open_bundle
from dragoman_service.errors import BundleError
from tests.unit.bundle.bundle_files import ALL_FILES, FILES, change_manifest

_ENCODER_SHA256 = sha256(FILES["encoder.onnx"]).hexdigest()


def test_valid_bundle_opens(directory: Path) -> None:
    bundle = open_bundle(directory)

    assert bundle.manifest.name == "en-de"
    assert bundle.tokenizer_path == directory / "tokenizer.model"
    assert bundle.graph_paths("fp32") == (directory / "encoder.onnx", directory / "decoder.onnx")


def checked(directory: Path, *, changed: str = "") -> frozenset[CheckedFile]:
    """Return all files as already checked; the check of `changed` was before its last change."""
    files = load_manifest(directory).files
    return frozenset(
        CheckedFile(
            name=name,
            sha256=files[name].sha256,
            inode=status.st_ino,
            bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns - (name == changed),
        )
        for name, status in ((name, (directory / name).stat()) for name in files)
    )


def test_unchanged_checked_file_is_not_read_again(directory: Path) -> None:
    encoder = directory / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))  # wrong checksum

    bundle = open_bundle(directory, checked_files=checked(directory))

    assert bundle.manifest == load_manifest(directory)


def test_changed_checked_file_is_read_again(directory: Path) -> None:
    encoder = directory / "encoder.onnx"
    encoder.write_bytes(bytes(encoder.stat().st_size))

    with pytest.raises(BundleError, match=r"encoder\.onnx: SHA-256 is"):
        open_bundle(directory, checked_files=checked(directory, changed="encoder.onnx"))


def test_checked_file_with_another_checksum_in_the_manifest_is_read(directory: Path) -> None:
    before = checked(directory)
    change_manifest(directory, lambda fields: fields["files"]["encoder.onnx"].update(sha256="0" * 64))

    with pytest.raises(BundleError, match=r"encoder\.onnx: SHA-256 is"):
        open_bundle(directory, checked_files=before)


@pytest.mark.parametrize(("age_ns", "is_known"), [(10**8, False), (2 * 10**9, True)])
def test_recently_written_file_is_read_again(directory: Path, age_ns: int, is_known: bool) -> None:
    # A second change within the same tick of the clock would not change the timestamp.
    files = checked(directory)
    now_ns = max(file.changed_ns for file in files) + age_ns

    bundle = open_bundle(directory, clock_ns=lambda: now_ns)

    assert (bundle.checked_files == files) is is_known


def test_manifest_with_millions_of_layers_is_rejected_in_little_memory(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields["architecture"].update(num_decoder_layers=3_000_000))

    tracemalloc.start()
    with pytest.raises(BundleError, match=r"architecture\.num_decoder_layers is 3000000, expected .* 256"):
        open_bundle(directory)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 1 << 20


def test_error_of_a_long_value_is_short(directory: Path) -> None:
    change_manifest(directory, lambda fields: fields.update(attribution="x" * 100_000))

    with pytest.raises(BundleError, match="attribution is 'xxx") as caught:
        open_bundle(directory)

    assert len(str(caught.value)) < 2000


def _make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))  # the path of a socket is short


def _link_out(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")
    path.resolve().write_bytes(FILES.get(path.name, b"{}"))


@pytest.mark.parametrize("name", [MANIFEST_NAME, "tokenizer.model"])
@pytest.mark.parametrize(
    ("put", "fault"),
    [
        (os.mkfifo, "not a regular file"),
        (_make_socket, "No such device or address"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/dev/zero"), "a link to a target outside its directory"),
        (_link_out, "a link to a target outside its directory"),
    ],
    ids=["fifo", "socket", "directory", "loop", "device", "link"],
)
def test_other_than_regular_file_is_rejected(
    tmp_path: Path, directory: Path, name: str, put: Callable[[Path], object], fault: str
) -> None:
    (tmp_path / "bundle").mkdir()
    for path in [path for path in directory.iterdir() if path.is_file()]:
        path.rename(tmp_path / "bundle" / path.name)
    (tmp_path / "bundle" / name).unlink()
    put(tmp_path / "bundle" / name)

    with pytest.raises(BundleError, match=rf"{name}: {fault}"):
        open_bundle(tmp_path / "bundle")


def test_link_inside_the_directory_is_followed(directory: Path) -> None:
    # Kubernetes mounts volumes in this way.
    (directory / ".data").mkdir()
    (directory / "encoder.onnx").rename(directory / ".data" / "encoder.onnx")
    (directory / "encoder.onnx").symlink_to(".data/encoder.onnx")

    assert open_bundle(directory).manifest.name == "en-de"


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        (MANIFEST_NAME, None, "No such file"),
        *((MANIFEST_NAME, content, "content is .*, expected JSON") for content in (b"", b"{", b"\xff")),
        *((MANIFEST_NAME, content, "content is .*, expected an object") for content in (b"[]", b"1")),
        *((MANIFEST_NAME, content * 100_000, "content is recursion limit") for content in (b"[", b'{"a":')),
        (MANIFEST_NAME, b" " * (1 << 20) + b"{}", "1048578 bytes"),
        ("decoder.onnx", None, "No such file"),
        ("encoder.onnx", b"cut", "size in bytes is 3, expected 13"),
        (
            "encoder.onnx",
            b"Encoder graph",
            f"SHA-256 is [0-9a-f]{{64}}, expected {sha256(b'encoder graph').hexdigest()}",
        ),
        ("weights.bin", b"Weights", "SHA-256 is"),
    ],
)
def test_missing_or_damaged_file_is_rejected(directory: Path, name: str, content: bytes | None, fault: str) -> None:
    change_manifest(directory, lambda fields: fields.update(precisions={"fp32": {**ALL_FILES}}))
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content)

    with pytest.raises(BundleError, match=f"{name}: {fault}"):
        open_bundle(directory)


def test_error_of_unknown_precision_lists_the_available_ones(directory: Path) -> None:
    bundle = open_bundle(directory)

    with pytest.raises(BundleError, match="precision is 'int8', expected one of fp32"):
        bundle.graph_paths("int8")


def test_tokenizer_files_are_checked(directory: Path) -> None:
    names = {"source_model": "weights.bin", "pieces": "attention.onnx"}
    change_manifest(
        directory, lambda fields: fields.update(schema_version=4, tokenization={**names, "source_prefix": [7]})
    )

    manifest = open_bundle(directory).manifest

    assert {*FILES, *names.values()} == manifest.named_files()
    assert manifest.tokenization.source_prefix == (7,)
