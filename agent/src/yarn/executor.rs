//! What starts containers on this node.

use std::time::Duration;

use creel_settings::Settings;
use creel_yarn::Directory;
use creel_yarn::effective::Effective;
use creel_yarn::isolation::{self, Executor};

use super::conf_dir;

/// What reading the files may take; longer, and their disk hangs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether YARN knows a GPU by its place among those that nvidia-smi shows, as
/// LinuxContainerExecutor does. No, where there is no configuration: YARN's default is another
/// executor. Absent: the configuration can't be read.
pub async fn knows_gpus_by_place(settings: &Settings) -> Option<bool> {
    let settings = settings.clone();
    let look = tokio::task::spawn_blocking(move || {
        let Ok(found) = conf_dir::find_at_once(&settings) else { return Some(false) };
        let directory = Directory::read(&found.path).ok()?;
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
        let yarn_conf_dir = directory.path().to_owned();
        let settings = Settings { yarn_conf_dir, ..Settings::default() };
        let write = |class: &str| {
            let text = format!(
                "<configuration><property><name>yarn.nodemanager.container-executor.class</name>\
                 <value>org.apache.hadoop.yarn.server.nodemanager.{class}</value></property>\
                 </configuration>"
            );
            std::fs::write(directory.path().join("yarn-site.xml"), text).unwrap();
        };
        write("LinuxContainerExecutor");
        assert_eq!(knows_gpus_by_place(&settings).await, Some(true));
        write("DefaultContainerExecutor");
        assert_eq!(knows_gpus_by_place(&settings).await, Some(false));
        std::fs::write(directory.path().join("yarn-site.xml"), "<configuration>").unwrap();
        assert_eq!(knows_gpus_by_place(&settings).await, None);
    }
}
