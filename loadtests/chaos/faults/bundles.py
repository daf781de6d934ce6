"""The files of the model that serves are deleted or cut off, and a version that is broken is asked for."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.chaos.bystanders import judged
from loadtests.chaos.calls import Client
from loadtests.chaos.fault import Fault, Stage
from loadtests.chaos.limits import Limits
from loadtests.chaos.venue import restore_models

_NUM_LOOKS: Final = 3
"""Times that the server looks at its models meanwhile."""

_LOOK_EACH_S: Final = 0.2
_NUM_CALLS: Final = 8
_KEPT_BYTES: Final = 1000
"""Of each file that is cut off."""

_BROKEN_VERSION: Final = "999"
_LOADING_S: Final = 4.0
"""Bystanders share the cores with the loading of models."""


def _delete(stage: Stage) -> str:
    shutil.rmtree(_bundle(stage.venue.models))
    return _serve_on(stage, expected={"NOT_FOUND"})


def _truncate(stage: Stage) -> str:
    for path in _bundle(stage.venue.models).iterdir():
        os.truncate(path, min(_KEPT_BYTES, path.stat().st_size))
    return _serve_on(stage, expected={"OK"})  # it is loaded, so there is nothing to do


def _load_broken(stage: Stage) -> str:
    """A new version comes that is cut off, and is asked for before anybody knows that it is broken."""
    bundle = _bundle(stage.venue.models)
    broken = bundle.parent / _BROKEN_VERSION
    arriving = stage.venue.models.parent / "arriving"
    shutil.rmtree(arriving, ignore_errors=True)
    shutil.copytree(bundle, arriving)
    for path in arriving.glob("*.bin"):
        os.truncate(path, path.stat().st_size // 2)
    arriving.rename(broken)
    try:
        return _serve_on(stage, expected={"FAILED_PRECONDITION"}, version=_BROKEN_VERSION)
    finally:
        shutil.rmtree(broken)


def _serve_on(stage: Stage, *, expected: set[str], version: str | None = None) -> str:
    """Translate with all options, ask for the version to be loaded, and bring the files back."""
    bundle = _bundle(stage.venue.pristine_models)
    try:
        with Client(stage.target) as client:
            _translate_all(stage, client)
            reply = client.load_model(f"{bundle.parent.name}/{version or bundle.name}")
            time.sleep(_NUM_LOOKS * _LOOK_EACH_S)
            _translate_all(stage, client)
        stage.hits[reply.status] += 1
        stage.require(
            reply.status in expected,
            f"who asked for the model was told {reply.status}, not {' or '.join(expected)}: {reply.message}",
        )
        stage.bystanders.wait_for_answers()
        return f"mt_requests_total{{LoadModel,{reply.status}}}" if _is_counted(stage, reply.status) else ""
    finally:
        if version is None:
            restore_models(stage.venue.pristine_models, stage.venue.models)


def _translate_all(stage: Stage, client: Client) -> None:
    """Ask for what the server may have put off reading until now, too."""
    for question in stage.questions[:_NUM_CALLS]:
        status = judged(client.translate(question.request), question).status
        stage.require(status == "OK", f"a translation was told {status}")
        for change in _OPTIONS:
            request = pb.TranslateRequest.FromString(question.request)
            change(request.options)
            reply = client.translate(request.SerializeToString())
            stage.require(reply.status == "OK", f"a translation with options was told {reply.status}: {reply.message}")
        if stage.broken:
            return


def _align(options: pb.DecodingOptions) -> None:
    options.return_alignment = True


def _cover(options: pb.DecodingOptions) -> None:
    options.coverage_penalty = 0.2


_OPTIONS: Final[tuple[Callable[[pb.DecodingOptions], None], ...]] = (_align, _cover)


def _bundle(models: Path) -> Path:
    """Return the only bundle of a directory."""
    (manifest,) = models.glob("*/*/manifest.json")
    return manifest.parent


def _is_counted(stage: Stage, status: str) -> bool:
    return stage.samples(f'mt_requests_total{{method="LoadModel",status="{status}"}}') > 0


_LIMITS: Final = Limits(max_bystander_s=_LOADING_S)
DELETED: Final = Fault(
    name="bundle-deleted", summary="the model's files are deleted while it serves", run=_delete, limits=_LIMITS
)
TRUNCATED: Final = Fault(
    name="bundle-truncated",
    summary="the model's files are cut off in place while it serves",
    run=_truncate,
    limits=_LIMITS,
)
BROKEN_VERSION: Final = Fault(
    name="version-broken",
    summary="a newer version arrives half copied and is asked for",
    run=_load_broken,
    limits=_LIMITS,
)
