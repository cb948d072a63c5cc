"""Whole GPUs and all adapters for distributed training: HGX H100, NDR InfiniBand."""

gpu_model = "H100-SXM5-80GB"
gpu_count = 8

hca_model = "ConnectX-7"
hca_count = 8
hca_rate_gbps = 400
