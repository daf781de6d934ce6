"""What the decoding threads do: how full batches are, how much of a step is padding, how fast tokens come."""

from typing import Final

from deploy.grafana.dashboard import Dashboard, Row
from deploy.grafana.panels import ORANGE, Query, TimeSeries
from deploy.grafana.queries import increase, mean, of, quantile, rate, total
from deploy.grafana.versions import bytes_of_versions

_BATCHES: Final = Row(
    title="Batches",
    panels=(
        TimeSeries(
            title="Live segments",
            description="Segments in the batches of all decoding threads of a replica.",
            queries=(Query(expr=total(of("dragoman_batch_live_segments"), "instance"), legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Live beam rows",
            description="Beams of those segments: the rows that a decoder step has to compute.",
            queries=(Query(expr=total(of("dragoman_batch_live_rows"), "instance"), legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Segments of a step",
            description="How many segments share a decoder step.",
            queries=(
                Query(expr=mean("dragoman_batch_segments"), legend="mean"),
                Query(expr=quantile(0.9, "dragoman_batch_segments"), legend="90% of steps at most"),
            ),
        ),
        TimeSeries(
            title="Padding",
            description="Mean share of a step that is wasted: rows beyond the beams of narrower "
            "segments, source positions beyond the ends of shorter ones.",
            queries=(Query(expr=mean("dragoman_step_padding_share", "part"), legend="{{part}}"),),
            unit="percentunit",
            most=1.0,
            thresholds=((0.5, ORANGE),),
        ),
        TimeSeries(
            title="Padded tokens of a batch",
            description="Segments times the longest source, each time that segments join.",
            queries=tuple(
                Query(expr=quantile(q, "dragoman_batch_padded_tokens"), legend=f"{q:.0%} at most") for q in (0.5, 0.95)
            ),
        ),
        bytes_of_versions(
            "Cache",
            "dragoman_kv_cache_bytes",
            description="Keys and values kept by the decoding threads of a model, room for more segments included.",
        ),
    ),
)

_SPEED: Final = Row(
    title="Speed",
    panels=(
        TimeSeries(
            title="Tokens",
            description="Per second: source tokens of answered segments, target tokens of their best hypotheses.",
            queries=(
                Query(expr=rate(of("dragoman_source_tokens_total")), legend="source"),
                Query(expr=rate(of("dragoman_target_tokens_total")), legend="target"),
            ),
        ),
        TimeSeries(
            title="Decoder steps",
            description="Per second, all threads of a replica.",
            queries=(Query(expr=rate(of("dragoman_decoder_steps_total"), "instance"), legend="{{instance}}"),),
        ),
        TimeSeries(
            title="Target tokens of a step",
            description="More where batches are fuller.",
            queries=(
                Query(
                    expr=f"{rate(of('dragoman_target_tokens_total'), 'instance')} "
                    f"/ {rate(of('dragoman_decoder_steps_total'), 'instance')}",
                    legend="{{instance}}",
                ),
            ),
        ),
        TimeSeries(
            title="Duration of a step",
            description="One decoder step of a whole batch.",
            queries=tuple(
                Query(expr=quantile(q, "dragoman_step_duration_seconds"), legend=f"{q:.0%} within")
                for q in (0.5, 0.95, 0.99)
            ),
            unit="s",
        ),
        TimeSeries(
            title="Encoder run",
            description="Of the segments that join together; points link to traces.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_encode_duration_seconds"), legend=f"{q:.0%} within", has_exemplars=True
                )
                for q in (0.5, 0.95)
            ),
            unit="s",
        ),
        TimeSeries(
            title="Search of a segment",
            description="From joining a batch; points link to traces.",
            queries=tuple(
                Query(
                    expr=quantile(q, "dragoman_decode_duration_seconds"), legend=f"{q:.0%} within", has_exemplars=True
                )
                for q in (0.5, 0.95)
            ),
            unit="s",
        ),
    ),
)

_RESULTS: Final = Row(
    title="Results",
    panels=(
        TimeSeries(
            title="Segments by outcome",
            description="Admitted segments per second, by how they ended.",
            queries=(Query(expr=rate(of("dragoman_segments_total"), "outcome"), legend="{{outcome}}"),),
            is_stacked=True,
        ),
        TimeSeries(
            title="Length of translations",
            description="Target tokens per source token. If it jumps with a new model, check its translations.",
            queries=tuple(
                Query(expr=quantile(q, "dragoman_length_ratio"), legend=f"{q:.0%} at most") for q in (0.05, 0.5, 0.95)
            ),
        ),
        TimeSeries(
            title="Second searches and defects",
            description="Segments decoded again by which result was returned, and the defects found in the first one; "
            "per interval of the panel.",
            queries=(
                Query(
                    expr=increase(of("dragoman_guard_outcomes_total"), "outcome"), legend="second search {{outcome}}"
                ),
                Query(expr=increase(of("dragoman_guard_defects_total"), "kind"), legend="{{kind}}"),
            ),
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="decoding",
    title="Decoding",
    description="Batch sizes, padding, and tokens per second.",
    rows=(_BATCHES, _SPEED, _RESULTS),
)
