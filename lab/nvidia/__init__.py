"""The simulated NVIDIA driver: kernel modules, NVML, nvidia-smi and their packages."""
