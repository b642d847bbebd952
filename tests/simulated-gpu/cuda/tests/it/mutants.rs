//! Kernels that lack one thing each are found out: the simulator can fail.
