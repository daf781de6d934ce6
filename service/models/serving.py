"""How the versions of one model are served: `NAME/serving.toml`, beside the bundles and outside of their checksums."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.errors import ConfigError
from service.models.names import MAX_LABEL_CHARACTERS, is_plain_name

SERVING_NAME = "serving.toml"
"""The file of settings of a model, in the directory that holds its versions."""

LATEST = "latest"
"""As default version: whichever ready one is the newest."""

MAX_VERSIONS = 100
"""Most versions of a model that may be kept or listed."""

_MAX_LABELS = 100
_LATEST_N = re.compile(r"latest:([1-9][0-9]{0,2})")


def _checked_versions(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, str) and (match := _LATEST_N.fullmatch(value)) and int(match[1]) <= MAX_VERSIONS:
        return value
    if isinstance(value, list | tuple) and 1 <= len(value) <= MAX_VERSIONS and all(map(_is_version, value)):
        return tuple(value)
    raise ValueError(f"`all`, `latest:N` with N from 1 to {MAX_VERSIONS}, or a list of 1 to {MAX_VERSIONS} versions")


def _checked_default(value: str) -> str:
    if is_plain_name(value.removeprefix("@")):
        return value
    raise ValueError("`latest`, a version, or `@` and a label")


def _checked_label(label: str) -> str:
    if is_plain_name(label) and len(label) <= MAX_LABEL_CHARACTERS:
        return label
    raise ValueError(f"a label of 1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")


def _checked_version(version: str) -> str:
    if is_plain_name(version):
        return version
    raise ValueError("a version: letters, digits, `.`, `_` and `-`")


def _is_version(value: object) -> bool:
    return isinstance(value, str) and is_plain_name(value)


_Label = Annotated[str, AfterValidator(_checked_label)]
_Version = Annotated[str, AfterValidator(_checked_version)]


class ServingSettings(BaseModel):
    """Which versions of a model are loaded, which one is the default, and what differs from the server's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    versions: Annotated[str | tuple[str, ...], BeforeValidator(_checked_versions)] = "all"
    """Which are loaded: `all`, the newest N with `latest:N`, or those of a list. What a label or the default version
    points to is loaded, too."""

    default_version: Annotated[str, AfterValidator(_checked_default)] = LATEST
    """Which one answers a request that names no version: `latest`, a version, or `@` and a label."""

    labels: dict[_Label, _Version] = Field(default_factory=dict, max_length=_MAX_LABELS)
    """Label to version, such as `stable` and `canary`; `SetModelLabel` sets others until the server ends."""

    scheduling: dict[str, Any] = Field(default_factory=dict)
    """What the model has in place of the server's settings of this section."""

    runtime: dict[str, Any] = Field(default_factory=dict)
    """What the model has in place of the server's settings of this section."""

    @property
    def num_latest(self) -> int | None:
        """How many of the newest versions are loaded, if it is those."""
        match = _LATEST_N.fullmatch(self.versions) if isinstance(self.versions, str) else None
        return int(match[1]) if match else None

    @property
    def overrides(self) -> Mapping[str, Mapping[str, Any]]:
        """Section of the server's settings to what the model has in place of it."""
        return {"scheduling": self.scheduling, "runtime": self.runtime}


def read_serving(directory: Path) -> ServingSettings:
    """Read the settings of the model whose versions a directory holds; all defaults if there is no file.

    What is in the tables of the server's settings is checked by who knows these.

    Raises:
        ConfigError: names the file, and the first key that is unknown or has a bad value.
    """
    path = directory / SERVING_NAME
    try:
        return ServingSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ServingSettings()
    except OSError as error:
        raise ConfigError("models.directory", str(path), f"a readable file ({error.strerror})") from error
    except ValidationError as error:
        raise _first_error(path, error) from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise ConfigError("models.directory", str(path), f"TOML ({error})") from error


def _first_error(path: Path, error: ValidationError) -> ConfigError:
    found = error.errors()[0]
    key = ".".join(str(part) for part in found["loc"] if part != "[key]")
    if found["type"] == "extra_forbidden":
        expected = f"one of the keys {', '.join(ServingSettings.model_fields)}"
    else:
        expected = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ConfigError(f"{path}: {key}", found["input"], expected)
