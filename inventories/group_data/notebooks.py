"""Seven notebooks on each GPU: HGX A100, HDR InfiniBand."""

gpu_model = "A100-SXM4-80GB"
gpu_count = 8
mig_config = "all-1g.10gb"
mig_strategy = "mixed"

hca_model = "ConnectX-6"
hca_count = 8
hca_rate_gbps = 200
