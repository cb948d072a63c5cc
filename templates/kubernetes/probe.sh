# Written by rackwright, cluster/probes.py. What a user's container sees of GPUs and RDMA devices.
# Runs in any image with a POSIX shell; every heading is printed whatever the commands below it do.
echo "## visible"
echo "${NVIDIA_VISIBLE_DEVICES:-}"
echo "## nvidia-smi"
nvidia-smi -L 2>&1
code=$?
echo "## nvidia-smi-exit"
echo "$code"
echo "## gpu-files"
for file in /dev/nvidia* /dev/nvidia-caps/*; do
    [ -e "$file" ] && [ ! -d "$file" ] && echo "$file"
done
echo "## rdma-files"
for file in /dev/infiniband/*; do
    [ -e "$file" ] && echo "$file"
done
echo "## memlock"
ulimit -l
echo "## end"
