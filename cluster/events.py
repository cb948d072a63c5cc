"""What kubelet and scheduler say of a pod that does not get on."""

from __future__ import annotations

from cluster.api import Api
from cluster.errors import ClusterError


def warning(api: Api, namespace: str, pod: str) -> str:
    """
    The newest warning about a pod, as in ``FailedCreatePodSandBox: ...``; empty if there is none.

    Words for a person: an API that does not tell is no error here.
    """
    try:
        events = list(
            api.list(
                f"/api/v1/namespaces/{namespace}/events",
                fieldSelector=f"involvedObject.name={pod},type=Warning",
            )
        )
    except ClusterError as error:
        return f"no events: {error}"
    if not events:
        return ""
    newest = max(
        events,
        key=lambda event: (
            event.get("lastTimestamp")
            or event.get("eventTime")
            or event["metadata"].get("creationTimestamp", "")
        ),
    )
    return f"{newest.get('reason', '')}: {' '.join(newest.get('message', '').split())}"
