//! Memory of the device and of the host beside it.

#[cfg(test)]
mod double;
pub mod error;
pub mod ledger;
pub mod pool;
pub mod semaphore;
pub mod sizing;
pub mod upstream;
