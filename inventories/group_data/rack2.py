"""Hosts of rack 2."""

kube_labels = {"topology.kubernetes.io/zone": "rack2"}
