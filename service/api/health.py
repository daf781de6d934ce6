"""grpc.health.v1: NOT_SERVING until warm and while draining, for the whole server and for each service."""

from collections.abc import Iterable

from grpc_health.v1 import health, health_pb2

SERVICE_NAME: str = health.SERVICE_NAME


class Health:
    """The status that load balancers ask for; `servicer` answers them."""

    def __init__(self, service_names: Iterable[str]) -> None:
        self.servicer = health.aio.HealthServicer()
        self._names = (health.OVERALL_HEALTH, *service_names)

    async def set_serving(self, is_serving: bool) -> None:
        """Tell every watcher whether new calls are welcome."""
        statuses = health_pb2.HealthCheckResponse
        for name in self._names:
            await self.servicer.set(name, statuses.SERVING if is_serving else statuses.NOT_SERVING)
