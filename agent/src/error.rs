//! What can fail in the agent and its command line.

use std::path::PathBuf;

/// What failed, on what, why, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing names a run directory.
    #[error(
        "there is no run directory: give one with --run-dir DIR or CREEL_RUN_DIR, or set \
         XDG_RUNTIME_DIR"
    )]
    NoRunDir,
    /// A socket's path would not fit into a socket address.
    #[error(
        "the socket path {} has {bytes} bytes, and the kernel takes {max}: choose a shorter run \
         directory with --run-dir DIR or CREEL_RUN_DIR",
        path.display()
    )]
    SocketPath {
        /// The path.
        path: PathBuf,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] creel_settings::Error),
}
