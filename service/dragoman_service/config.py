"""Settings of the server, merged from defaults, a TOML file, the environment and flags; later layers win.

`[grpc] port = 50051` in the file, `DRAGOMAN_GRPC__PORT=50051` in the environment and `grpc.port` in messages are the
same setting. Unknown names, values that cannot be parsed and values out of range are errors in every layer.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import ConfigError
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.http_api.settings import HttpSettings
from dragoman_service.models.serving import ModelSettings, ServingSettings
from dragoman_service.observability.logs import LogSettings
from dragoman_service.observability.tracing import TracingSettings
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.security.settings import AccessSettings, TlsSettings, is_loopback
from dragoman_service.toml import parse_toml
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits

ENVIRONMENT_PREFIX = "DRAGOMAN_"
"""Prefix of environment variables. The name of a setting follows: `DRAGOMAN_SECTION__NAME`."""

CONFIG_VARIABLE = "DRAGOMAN_CONFIG"
"""Environment variable with the path of the settings file; a flag takes precedence."""


_OWN_FILES = 64  # of a server with a few models, without connections


class Settings(BaseModel):
    """All settings of a server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    tls: TlsSettings = Field(default_factory=TlsSettings)
    access: AccessSettings = Field(default_factory=AccessSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    documents: DocumentSettings = Field(default_factory=DocumentSettings)
    logs: LogSettings = Field(default_factory=LogSettings)
    tracing: TracingSettings = Field(default_factory=TracingSettings)
    models: ModelSettings = Field(default_factory=ModelSettings)
    limits: TranslationLimits = Field(default_factory=TranslationLimits)
    defaults: TranslationDefaults = Field(default_factory=TranslationDefaults)
    scheduling: SchedulingSettings = Field(default_factory=SchedulingSettings)
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)

    @property
    def max_open_files(self) -> int:
        """Open files with all allowed connections."""
        return self.grpc.max_connections + self.http.max_connections + _OWN_FILES


_Entry = tuple[str, object, str]  # name, value and origin of a setting

_UNSET = (None, "", ())  # defaults of settings that are unset


def load_settings(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Merge all layers and validate the result.

    Args:
        file: TOML with one table per section. Default: the file in `DRAGOMAN_CONFIG`, if set.
        environment: usually `os.environ`. Variables without the prefix are ignored, and so are those of clients and
            tools, such as `DRAGOMAN_API_KEY`. An empty variable counts as unset if its setting is unset by default.
        flags: values by setting name, such as `grpc.port`; None means unset.

    Raises:
        ConfigError: with the first setting that is unknown, unparsable or out of range.
    """
    environment = environment or {}
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    entries = [
        *(_file_entries(file) if file else ()),
        *_environment_entries(environment),
        *((name, value, "command line") for name, value in (flags or {}).items() if value is not None),
    ]
    tree: dict[str, dict[str, object]] = {}
    for name, value, origin in entries:
        _check_known(name, origin)
        if value == "" and setting_fields()[name].default not in ("", ()):
            raise ConfigError(name, value, f"a value; to use the default, remove it ({origin})")
        section, _, field = name.partition(".")
        tree.setdefault(section, {})[field] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise _config_error(error.errors()[0], entries) from error
    _check_agreement(settings)
    check_bind_policy(settings)
    return settings


def setting_fields() -> dict[str, FieldInfo]:
    """Return the declaration of each setting, by `section.field`."""
    sections = {name: section.annotation for name, section in Settings.model_fields.items()}
    return {
        f"{section}.{name}": field
        for section, declaration in sections.items()
        if isinstance(declaration, type) and issubclass(declaration, BaseModel)
        for name, field in declaration.model_fields.items()
    }


def settings_of_model(settings: Settings, serving: ServingSettings, *, origin: Path) -> Settings:
    """Return the settings of a model: those of the server, overridden by the `serving.toml` at `origin`.

    Raises:
        ConfigError: with the file and the first setting that is unknown or out of range.
    """
    sections: dict[str, BaseModel] = {}
    for name, table in serving.overrides.items():
        section: BaseModel = getattr(settings, name)
        try:
            sections[name] = type(section).model_validate({**section.model_dump(exclude_unset=True), **table})
        except ValidationError as error:
            raise _error_of_model(error.errors()[0], name, origin) from error
    merged = settings.model_copy(update=sections)
    try:
        _check_agreement(merged)
    except ConfigError as error:
        raise ConfigError(f"{error.setting} with {origin}", error.value, error.expected) from error
    return merged


def _file_entries(path: Path) -> Iterator[_Entry]:
    try:
        tables = parse_toml(path.read_bytes())
    except OSError as error:
        raise ConfigError("config", str(path), f"a readable file ({error.strerror})") from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise ConfigError("config", str(path), f"TOML ({error})") from error
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError.unknown(section, f"one of the tables {', '.join(Settings.model_fields)} (file {path})")
        for name, value in table.items():
            yield f"{section}.{name}", value, f"file {path}"


def _environment_entries(environment: Mapping[str, str]) -> Iterator[_Entry]:
    fields = setting_fields()
    for variable, value in environment.items():
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
        if not variable.startswith(ENVIRONMENT_PREFIX) or not _is_setting(name):
            continue
        origin = f"environment variable {variable}"
        if not value and name in fields and fields[name].default in _UNSET:
            continue
        _check_ends(name, value, origin)
        yield name, value, origin


def _is_setting(name: str) -> bool:
    # A section and one underscore is a misspelt setting. Other names belong to clients, tools and Services.
    return "." in name or name.partition("_")[0] in Settings.model_fields


def _check_ends(name: str, value: str, origin: str) -> None:
    if value != value.strip().strip("\ufeff"):
        raise ConfigError(name, value, f"no space, line break or byte order mark at its start or end ({origin})")
    if value[:1] == value[-1:] and value[:1] in {'"', "'"}:
        raise ConfigError(name, value, f"no quotation marks, which --env-file of Docker does not remove ({origin})")


def _check_known(name: str, origin: str) -> None:
    known = setting_fields()
    if name not in known:
        similar = difflib.get_close_matches(name, known, n=1) or difflib.get_close_matches(
            name.rpartition(".")[2], [other.partition(".")[2] for other in known], n=1
        )
        hint = f", such as {similar[0]}" if similar else ""
        raise ConfigError.unknown(name, f"a known setting{hint} ({origin})")


def _check_agreement(settings: Settings) -> None:
    """Check that the largest request fits into an empty queue; otherwise its caller would retry forever."""
    share = settings.scheduling.max_caller_queue_share
    queue_settings = {
        "max_request_sentences": "max_queue_segments",
        "max_request_decode_cost": "max_queue_decode_cost",
    }
    for name, queue_name in queue_settings.items():
        limit, queue = getattr(settings.limits, name), getattr(settings.scheduling, queue_name)
        if limit > queue * share:
            product = f"scheduling.{queue_name} * scheduling.max_caller_queue_share"
            raise ConfigError(f"limits.{name}", limit, f"at most {product}, which is {queue} * {share:g}")


def check_bind_policy(settings: Settings) -> None:
    """Reject addresses other than loopback without credentials, or with credentials in plain text, unless allowed.

    Raises:
        ConfigError: names the setting and the settings that would allow it.
    """
    http, tls, access = settings.http, settings.tls, settings.access
    if access.allow_unauthenticated and (access.takes_secrets or tls.client_ca_file is not None):
        expected = "false if access.callers_file, access.jwks or tls.client_ca_file is set"
        raise ConfigError("access.allow_unauthenticated", True, expected)
    _check_host("grpc.host", settings.grpc.host, tls, access)
    if not http.serves_api(tls):
        return
    _check_host("http.host", http.host, tls, access)
    if tls.is_on and http.metrics_port is None:
        expected = "a port for metrics and probes, which are not encrypted, if the API is encrypted"
        raise ConfigError("http.metrics_port", None, expected)


def _check_host(setting: str, host: str, tls: TlsSettings, access: AccessSettings) -> None:
    if is_loopback(host):
        return
    if not (access.takes_secrets or tls.client_ca_file is not None or access.allow_unauthenticated):
        expected = (
            "a loopback address while callers need no credentials: set access.callers_file (API keys), access.jwks "
            "(tokens) or tls.client_ca_file (client certificates), or access.allow_unauthenticated = true to accept "
            "every caller"
        )
        raise ConfigError(setting, host, expected)
    if access.takes_secrets and not tls.is_on and not access.allow_plaintext_keys:
        expected = (
            "a loopback address while API keys or tokens would be sent in plain text: set tls.certificate_file and "
            "tls.private_key_file, or access.allow_plaintext_keys = true if a proxy encrypts the traffic"
        )
        raise ConfigError(setting, host, expected)


def _config_error(found: ErrorDetails, entries: Iterable[_Entry]) -> ConfigError:
    setting = ".".join(str(part) for part in found["loc"][:2])
    expected = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    for name, value, origin in reversed([*entries]):  # later entries take precedence
        if name == setting:
            return ConfigError(setting, value, f"{expected} ({origin})")
    return ConfigError(setting, found["input"], expected)


def _error_of_model(found: ErrorDetails, section: str, origin: Path) -> ConfigError:
    name = f"{section}.{found['loc'][0]}"
    if found["type"] == "extra_forbidden":
        known = [name for name in setting_fields() if name.startswith(f"{section}.")]
        return ConfigError.unknown(f"{origin}: {name}", f"one of {', '.join(known)}")
    error = _config_error({**found, "loc": (section, *found["loc"])}, [(name, found["input"], f"file {origin}")])
    return ConfigError(f"{origin}: {error.setting}", error.value, error.expected)
