//! The node's NVIDIA GPUs, as NVML knows them.
