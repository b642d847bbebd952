//! A test double of NVIDIA's driver libraries.
