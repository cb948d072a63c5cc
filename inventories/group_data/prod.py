"""
What all hosts of inventories/prod.py share.

It comes last and wins over every other group: only what no rack and no role decides for itself.
"""

ssh_user = "deploy"
ssh_known_hosts_file = "~/.ssh/known_hosts.prod"  # filled by the provisioning system
ssh_config_file = "~/.ssh/config.prod"  # with the jump host: docs/inventory.md

kube_api_server = "k8s.example.com:6443"
kube_kubeconfig = "~/.kube/rackwright.prod"  # least rights: docs/cluster-access.md

nvidia_driver_version = "580.178.04"

http_proxy = "http://proxy.example.com:3128"
https_proxy = "http://proxy.example.com:3128"
no_proxy = ["10.20.0.0/16", "10.96.0.0/12", "10.244.0.0/16"]  # hosts, services, pods
