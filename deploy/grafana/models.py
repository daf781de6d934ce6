"""Models and their states; loads, swaps and failures; reloaded files."""

from typing import Final

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import BLUE, GREEN, ORANGE, RED, Query, Stat, StateTimeline, Table, TimeSeries
from deploy.grafana.queries import of, of_model, total
from deploy.grafana.versions import bytes_of_versions

_STATES: Final = {1: ("loading", BLUE), 2: ("ready", GREEN), 3: ("draining", ORANGE), 4: ("failed", RED)}


def _in_state(state: str) -> str:
    return of_model("dragoman_model_state", f'state="{state}"')


_STATE: Final = " or ".join(f"{value} * ({_in_state(name)} == 1)" for value, (name, _) in _STATES.items())
_LOADS: Final = "dragoman_model_load_duration_seconds"

_THERE: Final = Row(
    title="Loaded versions",
    panels=(
        Stat(
            title="Versions ready",
            description="On all selected replicas together.",
            queries=(Query(expr=total(_in_state("ready"))),),
        ),
        Stat(
            title="Versions failed",
            description="Versions that could not be loaded and are still in the directory.",
            queries=(Query(expr=total(_in_state("failed"))),),
            thresholds=((1.0, RED),),
        ),
        Table(
            title="Loaded models",
            description="With their precision and device.",
            queries=(Query(expr=of_model("dragoman_model_info")),),
            columns=("instance", "model", "version", "precision", "device"),
            width=10,
        ),
        Table(
            title="Builds",
            description="Versions of the service and of ONNX Runtime.",
            queries=(Query(expr=of("dragoman_build_info")),),
            columns=("instance", "version", "onnxruntime"),
            width=6,
        ),
        StateTimeline(
            title="State of each version",
            description="Requests that name the model alone go to its default version.",
            queries=(
                Query(
                    expr=f"max by (instance, model, version) ({_STATE})",
                    legend="{{model}}/{{version}} on {{instance}}",
                ),
            ),
            states=_STATES,
            width=16,
        ),
        TimeSeries(
            title="Replicas that serve a version",
            description="Two lines of one model for a long time: replicas disagree.",
            queries=(
                Query(
                    expr=f"count by (model, version) ({_in_state('ready')} == 1)",
                    legend="{{model}}/{{version}}",
                ),
            ),
        ),
    ),
)

_CHANGES: Final = Row(
    title="Loads, swaps and unloads",
    panels=(
        TimeSeries(
            title="Loads",
            description="Versions that were loaded and warmed up since the start of each replica.",
            queries=(Query(expr=total(of(f"{_LOADS}_count"), "instance"), legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Duration of a load",
            description="Until the version accepted requests; mean since the start of each replica.",
            queries=(
                Query(
                    expr=f"{total(of(f'{_LOADS}_sum'), 'instance')} / {total(of(f'{_LOADS}_count'), 'instance')}",
                    legend="{{instance}}",
                ),
            ),
            unit="s",
        ),
        TimeSeries(
            title="Swaps and failures",
            description="Since the start of each replica: how often requests that name a model alone went to another "
            "version from then on, and how often a version could not be loaded.",
            queries=(
                Query(expr=total(of_model("dragoman_model_swaps_total"), "model"), legend="swaps of {{model}}"),
                Query(
                    expr=total(of_model("dragoman_model_load_failures_total"), "model"),
                    legend="failed loads of {{model}}",
                ),
            ),
        ),
        bytes_of_versions(
            "Weights",
            "dragoman_model_weights_bytes",
            description="Size of the graph and weight files of each loaded version.",
        ),
        bytes_of_versions(
            "Cache",
            "dragoman_kv_cache_bytes",
            description="Keys and values kept for each version, room for more segments included.",
        ),
    ),
)

_FILES: Final = Row(
    title="Reloaded files",
    panels=(
        TimeSeries(
            title="Certificates",
            description="Time until the first certificate of each file expires; empty without TLS.",
            queries=(
                Query(
                    expr=f"{of('dragoman_certificate_expiry_timestamp_seconds')} - time()",
                    legend="{{certificate}} on {{instance}}",
                ),
            ),
            unit="s",
            least=None,
        ),
        TimeSeries(
            title="Invalid changes",
            description="Since the start of each replica; the previous files stay in use.",
            queries=(
                Query(expr=of("dragoman_certificate_reload_failures_total"), legend="certificates on {{instance}}"),
                Query(expr=of("dragoman_callers_reload_failures_total"), legend="callers on {{instance}}"),
            ),
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="models",
    title="Models",
    description="Models and their states; loads, swaps and failures.",
    rows=(_THERE, _CHANGES, _FILES),
)
