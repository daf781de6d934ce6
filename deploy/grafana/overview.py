"""The first page to look at: traffic, errors, latency by stage, saturation."""

from typing import Final

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import ORANGE, RED, Heatmap, Query, Stat, TimeSeries
from deploy.grafana.queries import INTERVAL, cpu_cores, increase, of, of_job, quantile, rate, total

_STAGES: Final = {
    "text": "dragoman_text_duration_seconds",
    "queue": "dragoman_queue_wait_seconds",
    "encode": "dragoman_encode_duration_seconds",
    "decode": "dragoman_decode_duration_seconds",
}
_TRANSLATE: Final = 'method="Translate"'
_FAILED_SHARES: Final = ((0.005, ORANGE), (0.072, RED))
_CLUSTER: Final = '{envoy_cluster_name="dragoman"}'
_LISTENER: Final = '{envoy_http_conn_manager_prefix="grpc"}'

_NOW: Final = Row(
    title="Now",
    panels=(
        Stat(
            title="Replicas ready",
            description="Ready replicas among those selected. Red: none.",
            queries=(Query(expr=f"{total(of('dragoman_ready'))} or vector(0)"),),
        ),
        Stat(
            title="Calls",
            description="Per second, whatever their status; each request of a stream counts.",
            queries=(Query(expr=rate(of("dragoman_requests_total"))),),
            unit="reqps",
        ),
        Stat(
            title="Failed calls",
            description="Share of the last 5 minutes that failed through a fault of the service or overload. "
            "The objective is 0.5 %; from 7.2 % on the fast burn alert fires.",
            queries=(Query(expr=f"max({of_job('job:dragoman_request_failures:ratio_rate5m')})"),),
            unit="percentunit",
            thresholds=_FAILED_SHARES,
        ),
        Stat(
            title="Translate, 95th percentile",
            description="Time from the first byte of a call to its status. Objective: 99 % take at most 2.5 s.",
            queries=(Query(expr=quantile(0.95, "dragoman_request_duration_seconds", labels=_TRANSLATE)),),
            unit="s",
            thresholds=((1.0, ORANGE), (2.5, RED)),
        ),
        Stat(
            title="Waiting work",
            description="Time that the waiting work takes at the speed of the last two minutes.",
            queries=(Query(expr=f"max({of_job('job:dragoman_backlog_seconds:ratio_rate2m')})"),),
            unit="s",
            thresholds=((5.0, ORANGE), (30.0, RED)),
        ),
        Stat(
            title="Firing alerts",
            description="Warning and critical; docs/operations/runbook.md says what they mean and what to do.",
            queries=(Query(expr='count(ALERTS{job=~"$job", alertstate="firing", severity!="info"}) or vector(0)'),),
            thresholds=((1.0, RED),),
        ),
    ),
)

_TRAFFIC: Final = Row(
    title="Traffic",
    panels=(
        TimeSeries(
            title="Calls by method",
            description="Per second. A stream is counted request by request.",
            queries=(Query(expr=rate(of("dragoman_requests_total"), "method"), legend="{{method}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        TimeSeries(
            title="Calls by replica",
            description="Per second. Lines far apart: load balancer or long-lived connections distribute calls badly.",
            queries=(Query(expr=rate(of("dragoman_requests_total"), "instance"), legend="{{instance}}"),),
            unit="reqps",
        ),
        TimeSeries(
            title="Calls and streams in flight",
            description="RPCs being answered, and open calls of TranslateStream.",
            queries=(
                Query(expr=total(of("dragoman_requests_in_flight"), "method"), legend="{{method}}"),
                Query(expr=total(of("dragoman_open_streams")), legend="open streams"),
            ),
        ),
    ),
)

_ERRORS: Final = Row(
    title="Errors",
    panels=(
        TimeSeries(
            title="Calls by status",
            description="Per second. CANCELLED, INVALID_ARGUMENT, NOT_FOUND and UNAUTHENTICATED are caused by callers.",
            queries=(Query(expr=rate(of("dragoman_requests_total"), "status"), legend="{{status}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        TimeSeries(
            title="Share that failed",
            description="Through a fault of the service or overload; calls above a caller's own limit are not counted. "
            "Dashed: the objective, and the share at which the fast burn alert fires.",
            queries=(
                Query(expr=of_job("job:dragoman_request_failures:ratio_rate5m"), legend="{{job}}, 5 minutes"),
                Query(expr=of_job("job:dragoman_request_failures:ratio_rate1h"), legend="{{job}}, an hour"),
            ),
            unit="percentunit",
            thresholds=_FAILED_SHARES,
        ),
        TimeSeries(
            title="Rejected before the queue",
            description="Requests per second by reason: `overloaded` the queue is full, `deadline` the answer would be "
            "too late, the others are the reason in the reply.",
            queries=(Query(expr=rate(of("dragoman_rejected_requests_total"), "reason"), legend="{{reason}}"),),
            unit="reqps",
            is_stacked=True,
        ),
        TimeSeries(
            title="Segments that missed their deadline",
            description="Per second by stage. Those of `admission` were rejected at once; the others were wasted work.",
            queries=(Query(expr=rate(of("dragoman_deadline_misses_total"), "stage"), legend="{{stage}}"),),
            width=6,
        ),
        TimeSeries(
            title="Segments cancelled by callers",
            description="Per second, by stage.",
            queries=(Query(expr=rate(of("dragoman_cancelled_segments_total"), "stage"), legend="{{stage}}"),),
            width=6,
        ),
        TimeSeries(
            title="Warnings in replies",
            description="By kind, per interval of the panel.",
            queries=(Query(expr=increase(of("dragoman_translation_warnings_total"), "kind"), legend="{{kind}}"),),
            width=6,
        ),
        TimeSeries(
            title="Restarts of decoding processes",
            description="Per interval of the panel. Each had ended by itself: killed for memory, or crashed. The "
            "segments in its batches failed with INTERNAL.",
            queries=(
                Query(expr=increase(of("dragoman_decoding_process_restarts_total"), "instance"), legend="{{instance}}"),
            ),
            width=6,
        ),
    ),
)

_LATENCY: Final = Row(
    title="Latency",
    panels=(
        TimeSeries(
            title="Translate",
            description="Time from first byte to status; points link to traces. Dashed: the objective.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_request_duration_seconds", labels=_TRANSLATE),
                    legend=f"{q:.0%} of calls within",
                    has_exemplars=True,
                )
                for q in (0.5, 0.95, 0.99)
            ),
            unit="s",
            thresholds=((2.5, RED),),
        ),
        TimeSeries(
            title="By stage, 95th percentile",
            description="Text processing of a request; queue wait, encoder run and search of a segment.",
            queries=tuple(
                Query(expr=quantile(0.95, metric), legend=stage, has_exemplars=True)
                for stage, metric in _STAGES.items()
            ),
            unit="s",
        ),
        TimeSeries(
            title="Seconds per second in each stage",
            description="Where the time goes: the sum over all segments and requests in a stage.",
            queries=tuple(Query(expr=rate(of(f"{metric}_sum")), legend=stage) for stage, metric in _STAGES.items()),
            unit="s",
            is_stacked=True,
        ),
        Heatmap(
            title="Translate, distribution",
            description="Calls per second by duration.",
            queries=(
                Query(
                    expr=rate(of("dragoman_request_duration_seconds_bucket", _TRANSLATE), "le"),
                    legend="{{le}}",
                    has_exemplars=True,
                ),
            ),
            unit="s",
            width=16,
        ),
        TimeSeries(
            title="First sentence of a document",
            description="Time from the start of a document until its first sentence is finished.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_first_sentence_seconds"),
                    legend=f"{q:.0%} of documents within",
                    has_exemplars=True,
                )
                for q in (0.5, 0.95)
            ),
            unit="s",
        ),
    ),
)

_SATURATION: Final = Row(
    title="Saturation",
    panels=(
        TimeSeries(
            title="Wait in the queue, 90th percentile",
            description="Of segments, until they joined a batch. Dashed: the alert's threshold (interactive).",
            queries=(
                Query(
                    expr=quantile(0.9, "dragoman_queue_wait_seconds", "priority"),
                    legend="{{priority}}",
                    has_exemplars=True,
                ),
            ),
            unit="s",
            thresholds=((1.0, RED),),
        ),
        TimeSeries(
            title="Waiting work",
            description="Seconds that it takes at the speed of the last two minutes. Dashed: the alert's threshold.",
            queries=(Query(expr=of_job("job:dragoman_backlog_seconds:ratio_rate2m"), legend="{{job}}"),),
            unit="s",
            thresholds=((30.0, RED),),
        ),
        TimeSeries(
            title="CPU cores in use",
            description="Of each replica, its decoding processes included.",
            queries=(Query(expr=cpu_cores("instance"), legend="{{instance}}"),),
        ),
    ),
)

_BALANCER: Final = Row(
    title="Load balancer (Envoy)",
    panels=(
        TimeSeries(
            title="Replicas that Envoy sends calls to",
            description="Healthy replicas, and all that DNS lists; empty where callers use no Envoy.",
            queries=(
                Query(expr=f"envoy_cluster_membership_healthy{_CLUSTER}", legend="healthy, {{instance}}"),
                Query(expr=f"envoy_cluster_membership_total{_CLUSTER}", legend="all, {{instance}}"),
            ),
        ),
        TimeSeries(
            title="Attempts and retries",
            description="Calls per second that Envoy sent to a replica, and those that it retried at another one.",
            queries=(
                Query(expr=f"sum(rate(envoy_cluster_upstream_rq_total{_CLUSTER}{INTERVAL}))", legend="attempts"),
                Query(expr=f"sum(rate(envoy_cluster_upstream_rq_retry{_CLUSTER}{INTERVAL}))", legend="retries"),
            ),
            unit="reqps",
        ),
        TimeSeries(
            title="Client connections",
            description="Open connections, by Envoy.",
            queries=(Query(expr=f"envoy_http_downstream_cx_active{_LISTENER}", legend="{{instance}}"),),
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="overview",
    title="Overview",
    description="Traffic, errors, latency and saturation of all replicas.",
    rows=(_NOW, _TRAFFIC, _ERRORS, _LATENCY, _SATURATION, _BALANCER),
)
