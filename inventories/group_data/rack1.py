"""Hosts of rack 1."""

kube_labels = {"topology.kubernetes.io/zone": "rack1"}
