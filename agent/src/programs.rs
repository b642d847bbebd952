//! Where the agent's helper programs are.

use std::path::{Path, PathBuf};

/// Where a package puts programs that only the agent starts.
const LIBEXEC: &str = "/usr/libexec/creel";

/// The path of a program: the one that the environment variable names, else the one beside the
/// agent's own, else the package's, else whatever `PATH` finds.
pub fn find(name: &str, variable: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return std::path::absolute(&path).unwrap_or(path);
    }
    let beside = std::env::current_exe().map(|agent| agent.with_file_name(name));
    beside
        .into_iter()
        .chain([Path::new(LIBEXEC).join(name)])
        .find(|path| path.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}
