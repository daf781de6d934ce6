"""The run: splits the input, distributes the blocks, records the results."""

import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from dragoman_service.dataset_translation import files
from dragoman_service.dataset_translation.execution import translate_blocks
from dragoman_service.dataset_translation.files import Block, InputFile
from dragoman_service.dataset_translation.output import REJECTS, opened
from dragoman_service.dataset_translation.settings import Columns, DatasetError
from dragoman_service.dataset_translation.translators import EngineSpec, ServerSpec
from dragoman_service.errors import EngineError

_SAVE_INTERVAL_S: Final = 1.0


def translate_dataset(
    path: Path,
    directory: Path,
    spec: EngineSpec | ServerSpec,
    *,
    text_column: str,
    translation_column: str,
    output_format: str | None,
    max_characters: int | None,
    block_rows: int,
    num_workers: int,
) -> str:
    """Translate the blocks that are not completed; return a summary.

    Raises:
        DatasetError: if the input or the output directory cannot be used.
        EngineError: if a block fails; the completed ones are in the manifest.
    """
    if path.is_dir() and directory.resolve().is_relative_to(path.resolve()):
        raise DatasetError("OUTPUT", directory, "a directory outside INPUT")
    input_format, found = files.find_files(path)
    columns = Columns(
        text=text_column,
        translation=translation_column,
        input_format=input_format,
        output_format=output_format or ("parquet" if input_format == "parquet" else "jsonl"),
        max_characters=max_characters,
    )
    if len({text_column, *columns.added}) < 5:
        raise DatasetError(
            "--column", repr(translation_column), f"another name than {text_column}, row_id, score and warnings"
        )
    columns = replace(columns, header=files.read_header(found, columns))
    inputs, blocks = list[InputFile](), list[Block]()
    for file, name in found:
        described, own = files.split(file, name, input_format, first_index=len(blocks), block_rows=block_rows)
        inputs.append(described)
        blocks += own
    if columns.output_format == "parquet" and input_format != "parquet" and blocks:
        columns = replace(columns, schema=files.infer_schema(blocks[0], columns))
    settings = {
        "text_column": text_column,
        "column": translation_column,
        "format": columns.output_format,
        "block_rows": block_rows,
        "limits.max_text_characters": max_characters,
        **spec.settings,
    }
    with opened(directory, settings, inputs, len(blocks)) as output:
        manifest = output.manifest
        remaining = [block for block in blocks if block.index not in manifest.blocks]
        num_rows = sum(each.num_rows for each in inputs)
        num_done = num_rows - sum(block.num_rows for block in remaining)
        saved_s = time.monotonic()
        by_index = {block.index: block for block in remaining}
        results = translate_blocks(remaining, spec, columns, directory, num_workers=num_workers)
        with closing(results), tqdm(total=num_rows, initial=num_done, unit=" rows", disable=None) as progress:
            for result in results if remaining else ():
                if result.error:
                    raise EngineError(result.error)
                output.add(result)
                progress.update(by_index[result.index].num_rows)
                if time.monotonic() - saved_s >= _SAVE_INTERVAL_S:
                    output.save()
                    saved_s = time.monotonic()
        num_rejected = manifest.count("rejected")
        rejected = f"{num_rejected} rejected ({directory / REJECTS})" if num_rejected else "0 rejected"
        return f"{directory}: {manifest.count('translated')} rows translated, {rejected}, model {settings['model']}"
