"""Capacity: the backlog, the forecast, offered against answered load, and what a replica uses."""

from typing import Final

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import ORANGE, RED, Query, Stat, TimeSeries
from deploy.grafana.queries import cpu_cores, increase, memory, of, of_job, of_model, quantile, rate, total

_ANSWERED: Final = 'status="OK"'
_LATE: Final = 'direction="late"'
_PEAK: Final = f"max_over_time({of_job('job:dragoman_source_tokens:rate5m')}[1d])"
_BUSY: Final = " + ".join(
    rate(of(name), "instance")
    for name in ("dragoman_step_duration_seconds_sum", "dragoman_encode_duration_seconds_sum")
)

_OF_GPU: Final = "GPU {{gpu}} of {{instance}}"

_NOW: Final = Row(
    title="Now",
    panels=(
        Stat(
            title="Spare capacity",
            description="How far the source tokens of the last 5 minutes are below the best 5 minutes of the last day. "
            "Meaningful only if the service was busy at some time of that day.",
            queries=(Query(expr=f"min(1 - {of_job('job:dragoman_source_tokens:rate5m')} / {_PEAK})"),),
            unit="percentunit",
            width=6,
        ),
        Stat(
            title="Best 5 minutes of the last day",
            description="Source tokens per second, all replicas together.",
            queries=(Query(expr=f"sum({_PEAK})"),),
            decimals=0,
            width=6,
        ),
        Stat(
            title="Calls rejected for overload",
            description="Share of the last 5 minutes.",
            queries=(Query(expr=f"max({of_job('job:dragoman_refused_requests:ratio_rate5m')})"),),
            unit="percentunit",
            thresholds=((0.01, ORANGE), (0.05, RED)),
            width=6,
        ),
        Stat(
            title="Segments late after admission",
            description="Share of the last 5 minutes: wasted work.",
            queries=(Query(expr=f"max({of_job('job:dragoman_deadline_misses:ratio_rate5m')})"),),
            unit="percentunit",
            thresholds=((0.001, ORANGE), (0.01, RED)),
            width=6,
        ),
    ),
)

_BACKLOG: Final = Row(
    title="Backlog",
    panels=(
        TimeSeries(
            title="Backlog",
            description="Work tokens in the queue: source tokens, and beam size times expected decoder steps. "
            "`scheduling.max_queue_work_tokens` is the limit of a model on a replica.",
            queries=(Query(expr=total(of("dragoman_queue_work_tokens"), "instance"), legend="{{instance}}"),),
            is_stacked=True,
        ),
        TimeSeries(
            title="Waiting segments",
            description="`scheduling.max_queue_segments` is the limit of a model on a replica.",
            queries=(Query(expr=total(of("dragoman_queue_segments"), "instance"), legend="{{instance}}"),),
            is_stacked=True,
        ),
        TimeSeries(
            title="Backlog in seconds",
            description="Waiting source tokens, at the current speed. Dashed: the alert's threshold.",
            queries=(
                Query(
                    expr=f"{total(of('dragoman_queue_tokens'), 'instance')} "
                    f"/ {rate(of('dragoman_source_tokens_total'), 'instance')}",
                    legend="{{instance}}",
                ),
            ),
            unit="s",
            thresholds=((30.0, RED),),
        ),
        TimeSeries(
            title="Wait in the queue",
            description="Of segments until they joined a batch, their encoder run apart, by priority.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_queue_wait_seconds", "priority"),
                    legend=f"{{{{priority}}}}, {q:.0%} within",
                    has_exemplars=True,
                )
                for q in (0.5, 0.9, 0.99)
            ),
            unit="s",
        ),
        TimeSeries(
            title="Error of predictions",
            description="How far off it was at admission when a request would be decoded. Late ones make callers miss "
            "their deadlines, early ones make the service reject work that it could have done.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_prediction_error_seconds", "direction"),
                    legend=f"{{{{direction}}}}, {q:.0%} within",
                )
                for q in (0.5, 0.9)
            ),
            unit="s",
        ),
        TimeSeries(
            title="Predictions that were late",
            description="Share of the requests decoded later than predicted.",
            queries=(
                Query(
                    expr=f"{rate(of('dragoman_prediction_error_seconds_count', _LATE))} "
                    f"/ {rate(of('dragoman_prediction_error_seconds_count'))}",
                    legend="late",
                ),
            ),
            unit="percentunit",
            most=1.0,
        ),
    ),
)

_OFFERED: Final = Row(
    title="Offered and answered load",
    panels=(
        TimeSeries(
            title="Calls offered and answered",
            description="Per second. The difference was rejected, failed or cancelled.",
            queries=(
                Query(expr=rate(of("dragoman_requests_total")), legend="offered"),
                Query(expr=rate(of("dragoman_requests_total", _ANSWERED)), legend="answered"),
            ),
            unit="reqps",
        ),
        TimeSeries(
            title="Source tokens offered and answered",
            description="Per second. Offered is an estimate: rejected calls are never tokenized, so they count as "
            "long as answered ones.",
            queries=(
                Query(
                    expr=f"{rate(of('dragoman_source_tokens_total'))} * {rate(of('dragoman_requests_total'))} "
                    f"/ {rate(of('dragoman_requests_total', _ANSWERED))}",
                    legend="offered",
                ),
                Query(expr=rate(of("dragoman_source_tokens_total")), legend="answered"),
            ),
        ),
        TimeSeries(
            title="Source tokens against the best of the day",
            description="Five-minute rates of all replicas together.",
            queries=(
                Query(expr=of_job("job:dragoman_source_tokens:rate5m"), legend="{{job}}"),
                Query(expr=_PEAK, legend="{{job}}, best of the last day"),
            ),
        ),
    ),
)

_PROCESS: Final = Row(
    title="Resources of a replica",
    panels=(
        TimeSeries(
            title="CPU cores in use",
            description="Of the process that answers calls and of those that decode, together.",
            queries=(Query(expr=cpu_cores("instance"), legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Busy decoding threads",
            description="On average: seconds of encoder runs and decoder steps per second. At the number of "
            "decoding threads the replica is saturated.",
            queries=(Query(expr=_BUSY, legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Source tokens per CPU second",
            description="Throughput of a core; more where batches are fuller.",
            queries=(Query(expr=f"{rate(of('dragoman_source_tokens_total'))} / ({cpu_cores()})", legend="tokens"),),
        ),
        TimeSeries(
            title="Memory",
            description="Resident memory of all processes of a replica, and of each decoding process, by the model it "
            "runs; 0: the process has ended.",
            queries=(
                Query(expr=memory("instance"), legend="{{instance}}"),
                Query(
                    expr=of_model("dragoman_decoding_process_resident_memory_bytes"),
                    legend="{{model}}/{{version}}, engine {{engine}}, on {{instance}}",
                ),
            ),
            unit="bytes",
        ),
        TimeSeries(
            title="Open files and connections",
            description="Share of the limit of the process that answers calls.",
            queries=(Query(expr=f"{of('process_open_fds')} / {of('process_max_fds')}", legend="{{instance}}"),),
            unit="percentunit",
            thresholds=((0.8, RED),),
        ),
        TimeSeries(
            title="Uptime",
            description="Since the start of the process that answers calls.",
            queries=(Query(expr=f"time() - {of('process_start_time_seconds')}", legend="{{instance}}"),),
            unit="s",
        ),
        TimeSeries(
            title="Garbage collections",
            description="Of Python in the process that answers calls, per interval of the panel, by generation.",
            queries=(
                Query(
                    expr=increase(of("python_gc_collections_total"), "generation"), legend="generation {{generation}}"
                ),
            ),
        ),
        TimeSeries(
            title="Spans of traces",
            description="Per second, by whether the collector accepted them; empty without tracing.",
            queries=(Query(expr=rate(of("dragoman_trace_spans_total"), "outcome"), legend="{{outcome}}"),),
        ),
    ),
)

_GPU: Final = Row(
    title="GPUs",
    panels=(
        TimeSeries(
            title="Memory of a GPU",
            description="Taken by whatever process, and all there is; empty without GPUs.",
            queries=(
                Query(expr=of("dragoman_gpu_memory_used_bytes"), legend=f"taken, {_OF_GPU}"),
                Query(expr=of("dragoman_gpu_memory_bytes"), legend=f"all, {_OF_GPU}"),
            ),
            unit="bytes",
        ),
        TimeSeries(
            title="Busy share of a GPU",
            description="Of the last moments in which it ran anything; it says nothing of how well it was filled.",
            queries=(Query(expr=of("dragoman_gpu_busy_share"), legend=_OF_GPU),),
            unit="percentunit",
            most=1.0,
        ),
        TimeSeries(
            title="Clock of a GPU",
            description="Of its multiprocessors; it falls with heat and with limits of power.",
            queries=(Query(expr=of("dragoman_gpu_clock_hertz"), legend=_OF_GPU),),
            unit="hertz",
        ),
        TimeSeries(
            title="Power of a GPU",
            description="What it takes.",
            queries=(Query(expr=of("dragoman_gpu_power_watts"), legend=_OF_GPU),),
            unit="watt",
        ),
        TimeSeries(
            title="Copies of decoding",
            description="Between the host and GPUs; keys and values stay there, so it is little.",
            queries=(Query(expr=rate(of("dragoman_device_copy_bytes_total"), "direction"), legend="{{direction}}"),),
            unit="Bps",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="capacity",
    title="Capacity",
    description="Backlog, forecast, offered and answered load, the resources of a replica, and its GPUs.",
    rows=(_NOW, _BACKLOG, _OFFERED, _PROCESS, _GPU),
)
