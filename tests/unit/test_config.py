import re
from pathlib import Path

import pytest

from dragoman_service.config import Settings, load_settings, setting_fields
from dragoman_service.errors import ConfigError

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "service.toml"
    path.write_text(
        '[grpc]\nport = 1\nhost = "10.0.0.1"\n'
        "[access]\nallow_unauthenticated = true\n"
        "[scheduling]\nmax_batch_segments = 2\n",
        encoding="utf-8",
    )
    return path


def test_default_settings_serve_the_bundled_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    settings = load_settings()

    assert settings.models.directory == CHECKOUT / "deploy" / "models" / "dragoman_models"
    assert settings.model_copy(update={"models": Settings().models}) == Settings()


def test_file_changes_only_its_settings(settings_file: Path) -> None:
    settings = load_settings(file=settings_file)

    assert (settings.grpc.port, settings.scheduling.max_batch_segments) == (1, 2)
    assert settings.http == Settings().http


def test_flags_override_environment_and_environment_overrides_file(settings_file: Path) -> None:
    settings = load_settings(
        file=settings_file,
        environment={"DRAGOMAN_GRPC__HOST": "10.0.0.2", "DRAGOMAN_GRPC__PORT": "2"},
        flags={"grpc.port": "3", "http.port": None},
    )

    assert (settings.grpc.port, settings.grpc.host) == (3, "10.0.0.2")
    assert settings.scheduling.max_batch_segments == 2
    assert settings.http.port == Settings().http.port


def test_flag_overrides_the_file_of_the_environment(settings_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[grpc]\nport = 9\n", encoding="utf-8")
    environment = {"DRAGOMAN_CONFIG": str(settings_file)}

    assert load_settings(environment=environment).grpc.port == 1
    assert load_settings(environment=environment, file=other).grpc.port == 9


@pytest.mark.parametrize(
    "variable",
    [
        "PATH",
        "GRPC_TRACE",
        "dragoman_x",
        "DRAGOMAN_NATIVE_LIBRARY",
        "DRAGOMAN_API_KEY",  # of clients
        "DRAGOMAN_IMAGE",  # of tools
        "DRAGOMAN_PORT_50051_TCP",  # of a Service in Kubernetes
    ],
)
def test_other_variables_are_ignored(variable: str) -> None:
    assert load_settings(environment={variable: "x"}) == load_settings()


@pytest.mark.parametrize("name", setting_fields())
def test_empty_variable_is_unset_or_named(name: str) -> None:
    variable = f"DRAGOMAN_{name.upper().replace('.', '__')}"
    if setting_fields()[name].default in (None, "", ()):
        assert load_settings(environment={variable: ""}) == load_settings()
        return

    with pytest.raises(ConfigError, match=f"remove it.*environment variable {variable}") as caught:
        load_settings(environment={variable: ""})
    assert (caught.value.setting, caught.value.value) == (name, "")


def test_empty_variable_keeps_the_value_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "service.toml"
    file.write_text('[access]\ncallers_file = "callers.toml"\n', encoding="utf-8")

    settings = load_settings(environment={"DRAGOMAN_CONFIG": str(file), "DRAGOMAN_ACCESS__CALLERS_FILE": ""})

    assert settings.access.callers_file == Path("callers.toml")
    assert load_settings(environment={"DRAGOMAN_CONFIG": ""}) == load_settings()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("127.0.0.1 ", "no space"),
        ("\t127.0.0.1", "no space"),
        ("127.0.0.1\n", "line break"),
        ("\ufeff127.0.0.1", "byte order mark"),
        ('"127.0.0.1"', "no quotation marks"),
        ("'127.0.0.1'", "no quotation marks"),
    ],
)
@pytest.mark.parametrize("variable", ["DRAGOMAN_GRPC__HOST", "DRAGOMAN_GRPC__PORT", "DRAGOMAN_TLS__CERTIFICATE_FILE"])
def test_space_quotation_mark_and_byte_order_mark_around_a_variable_are_named(
    variable: str, value: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"{problem}.*environment variable {variable}"):
        load_settings(environment={variable: value})


def test_file_with_a_byte_order_mark_and_windows_line_ends_is_read(tmp_path: Path) -> None:
    file = tmp_path / "service.toml"
    file.write_bytes(b"\xef\xbb\xbf[grpc]\r\nport = 1\r\n")

    assert load_settings(file=file).grpc.port == 1


SECRET = "s3cret"  # noqa: S105 - of these tests


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DRAGOMAN_ACCESS__API_KEY", SECRET),
        ("DRAGOMAN_ACCESS_KEY", SECRET),
        ("DRAGOMAN_KEYS__SHOP", SECRET),
        ("DRAGOMAN_TRACING__ENDPOINT", f"http://user:{SECRET}@collector:4317"),
        ("DRAGOMAN_ACCESS__QUOTA_STORE_URL_FILE", f"redis://:{SECRET}@store:6379/0"),
        ("DRAGOMAN_ACCESS__JWKS", f"http://idp.example/keys?token={SECRET}"),
        ("DRAGOMAN_TLS__PRIVATE_KEY_FILE", f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"),
        ("DRAGOMAN_TLS__CLIENT_CA_FILE", f" {SECRET * 100}"),
    ],
)
def test_secret_in_a_variable_is_not_printed(variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(environment={variable: value})

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("content", [f"api_key = '{SECRET}'", f"[access]\napi_key = '{SECRET}'"])
def test_secret_in_a_file_is_not_printed(content: str, tmp_path: Path) -> None:
    assert SECRET not in str(error_of(content, tmp_path))


def error_of(content: str, tmp_path: Path) -> ConfigError:
    file = tmp_path / "bad.toml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_settings(file=file)
    return caught.value


@pytest.mark.parametrize(
    ("content", "setting", "value", "expected"),
    [
        ("[grpc]\nport = 65536", "grpc.port", 65536, "less than or equal to 65535"),
        ("[grpc]\nport = 'many'", "grpc.port", "many", "a valid integer"),
        ("[grpc]\nprot = 1", "grpc.prot", None, "a known setting, such as grpc.port"),
        ("[grcp]\nport = 1", "grcp.port", None, "a known setting, such as grpc.port"),
        ("[logs]\nlevel = 'loud'", "logs.level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("port = 1", "port", None, "one of the tables grpc, tls, access"),
        ("[access]\ncallers_file = ''", "access.callers_file", "", "a value; to use the default, remove it"),
        ("[grpc]\nport.number = 1", "grpc.port", {"number": 1}, "a valid integer"),
        ("[limits]\nmax_texts = 0", "limits.max_texts", 0, "greater than or equal to 1"),
    ],
)
def test_invalid_setting_in_the_file_is_named_with_its_value(
    content: str, setting: str, value: object, expected: str, tmp_path: Path
) -> None:
    error = error_of(content, tmp_path)

    assert (error.setting, error.value) == (setting, value)
    assert expected in error.expected


@pytest.mark.parametrize(
    "content",
    [
        "[grpc\n",
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        f"[grpc]\nport = {'[' * 3000}",
        f"[grpc]\nport = 0x{'9' * 20_000}",
    ],
    ids=["syntax", "encoding", "depth", "integer"],
)
def test_file_that_is_not_toml_is_named(content: str, tmp_path: Path) -> None:
    error = error_of(content, tmp_path)

    assert error.setting == "config"
    assert error.expected.startswith("TOML (")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml.*No such file"):
        load_settings(file=tmp_path / "missing.toml")


@pytest.mark.parametrize(
    ("variable", "value", "setting"),
    [
        ("DRAGOMAN_GRPC__PORT", "many", "grpc.port"),
        ("DRAGOMAN_GRPC_PORT", "1", "grpc_port"),
        ("DRAGOMAN_GRPC__PORT__X", "1", "grpc.port__x"),
        ("DRAGOMAN_GRPC", "{}", "grpc"),
        ("DRAGOMAN_PROT__PORT", "1", "prot.port"),
    ],
)
def test_invalid_environment_variable_is_named(variable: str, value: str, setting: str, settings_file: Path) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {variable}") as caught:
        load_settings(file=settings_file, environment={variable: value})

    assert caught.value.setting == setting


def test_invalid_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'grpc.port' is '-1'.*command line"):
        load_settings(flags={"grpc.port": "-1"})


def test_default_timeout_above_the_maximum_is_rejected() -> None:
    with pytest.raises(ConfigError, match="default_timeout_s at most max_timeout_s"):
        load_settings(environment={"DRAGOMAN_GRPC__MAX_TIMEOUT_S": "1"})


@pytest.mark.parametrize(
    ("limit", "queue", "bound", "shown"),
    [
        ("max_request_sentences", "max_queue_segments", 21, r"max_queue_segments \* .*_share, which is 21 \* 0.5"),
        (
            "max_request_decode_cost",
            "max_queue_decode_cost",
            20,
            r"max_queue_decode_cost \* .*_share, which is 20 \* 0.5",
        ),
    ],
)
def test_largest_request_must_fit_into_an_empty_queue(limit: str, queue: str, bound: int, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"'limits.{limit}' is 11.*at most scheduling.{shown}"):
        load_settings(flags={f"limits.{limit}": 11, f"scheduling.{queue}": bound})

    assert load_settings(flags={f"limits.{limit}": 10, f"scheduling.{queue}": bound})


def test_settings_are_described_in_sentences() -> None:
    sentence = re.compile(r"[A-Z0-9`].{9,}[.)]", re.DOTALL)

    assert [name for name, field in setting_fields().items() if not sentence.fullmatch(field.description or "")] == []


def test_bundled_settings_file_has_the_defaults() -> None:
    assert load_settings(file=CHECKOUT / "deploy" / "service.toml") == load_settings()


def test_bundled_settings_file_lists_all_settings() -> None:
    content = (CHECKOUT / "deploy" / "service.toml").read_text(encoding="utf-8")

    for section, _, field in (name.partition(".") for name in setting_fields()):
        assert f"\n{field} = " in content.split(f"[{section}]")[1].split("\n[")[0].replace("\n# ", "\n")
