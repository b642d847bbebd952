//! What starts containers on this node.

use std::path::PathBuf;
use std::time::Duration;

use creel_yarn::Directory;
use creel_yarn::effective::Effective;
use creel_yarn::isolation::{self, Executor};

/// What reading the files may take; longer, and their disk hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether YARN knows a GPU by its place among those that nvidia-smi shows, as
/// LinuxContainerExecutor does. No, where there is no configuration: YARN's default is another
/// executor. Absent: the configuration can't be read. `conf_dir` looks for its directory.
pub async fn knows_gpus_by_place(
    conf_dir: impl FnOnce() -> Option<PathBuf> + Send + 'static,
) -> Option<bool> {
    let look = tokio::task::spawn_blocking(move || {
        let Some(path) = conf_dir() else { return Some(false) };
        let directory = Directory::read(&path).ok()?;
        let effective = Effective::of_yarn(&directory, directory.documents());
        Some(isolation::executor(&effective) == Executor::Linux)
    });
    tokio::time::timeout(PATIENCE, look).await.ok()?.ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn by_the_class_in_yarn_site() {
        let directory = tempfile::tempdir().unwrap();
        let known = async || {
            let path = directory.path().to_owned();
            knows_gpus_by_place(|| Some(path)).await
        };
        let write = |class: &str| {
            let text = format!(
                "<configuration><property><name>yarn.nodemanager.container-executor.class</name>\
                 <value>org.apache.hadoop.yarn.server.nodemanager.{class}</value></property>\
                 </configuration>"
            );
            std::fs::write(directory.path().join("yarn-site.xml"), text).unwrap();
        };
        write("LinuxContainerExecutor");
        assert_eq!(known().await, Some(true));
        write("DefaultContainerExecutor");
        assert_eq!(known().await, Some(false));
        std::fs::write(directory.path().join("yarn-site.xml"), "<configuration>").unwrap();
        assert_eq!(known().await, None);
        assert_eq!(knows_gpus_by_place(|| None).await, Some(false));
    }
}
