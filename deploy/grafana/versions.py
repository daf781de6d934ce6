"""A panel that several dashboards have: bytes of each version of each model."""

from deploy.grafana.panels import Query, TimeSeries
from deploy.grafana.queries import of_model, total


def bytes_of_versions(title: str, metric: str, *, description: str) -> TimeSeries:
    """Return a panel of a gauge in bytes, the versions on top of each other."""
    query = Query(
        expr=total(of_model(metric), "instance", "model", "version"), legend="{{model}}/{{version}} on {{instance}}"
    )
    return TimeSeries(title=title, description=description, queries=(query,), unit="bytes", is_stacked=True)
