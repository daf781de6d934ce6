"""PromQL as the dashboards write it: what is selected by the variables, rates, means and quantiles."""

from typing import Final

INTERVAL: Final = "[$__rate_interval]"

_JOB: Final = 'job=~"$job"'
_REPLICAS: Final = f'{_JOB}, instance=~"$instance"'


def of(metric: str, labels: str = "") -> str:
    """Select the series of the chosen replicas, with further matchers such as `stage="queue"`."""
    return _selected(metric, _REPLICAS, labels)


def of_model(metric: str, labels: str = "") -> str:
    """Select the series of the chosen models on the chosen replicas."""
    return _selected(metric, _REPLICAS, 'model=~"$model"', labels)


def of_job(metric: str, labels: str = "") -> str:
    """Select series that are of all replicas together, such as recorded ones."""
    return _selected(metric, _JOB, labels)


def total(series: str, *by: str) -> str:
    """Add gauges up."""
    return f"sum{_by(by)} ({series})"


def rate(series: str, *by: str) -> str:
    """Add up how fast counters grow, in a second."""
    return f"sum{_by(by)} (rate({series}{INTERVAL}))"


def increase(series: str, *by: str) -> str:
    """Add up by how much counters have grown in an interval of the panel."""
    return f"sum{_by(by)} (increase({series}{INTERVAL}))"


def cpu_cores(*by: str) -> str:
    """Add up the cores that servers use: their own processes and those that decode for them."""
    return _with_decoding(
        rate(of("process_cpu_seconds_total"), *by), rate(of("dragoman_decoding_process_cpu_seconds_total"), *by)
    )


def memory(*by: str) -> str:
    """Add up the resident memory of servers: their own processes and those that decode for them."""
    return _with_decoding(
        total(of("process_resident_memory_bytes"), *by),
        total(of("dragoman_decoding_process_resident_memory_bytes"), *by),
    )


def mean(histogram: str, *by: str) -> str:
    """Return the mean of what a histogram observed."""
    return f"{rate(of(f'{histogram}_sum'), *by)} / {rate(of(f'{histogram}_count'), *by)}"


def quantile(q: float, histogram: str, *by: str, labels: str = "") -> str:
    """Return a quantile of what a histogram observed."""
    return f"histogram_quantile({q:g}, {rate(of(f'{histogram}_bucket', labels), *by, 'le')})"


def _with_decoding(own: str, decoding: str) -> str:
    """Add what decoding processes use, where there are any: a sum with nothing would be nothing."""
    return f"{own} + ({decoding} or 0 * {own})"


def _selected(metric: str, *matchers: str) -> str:
    return f"{metric}{{{', '.join(filter(None, matchers))}}}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
