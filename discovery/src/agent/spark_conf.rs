//! How many GPUs a Spark job asks for, by the configuration that Spark puts into each container's
//! directory (`org.apache.spark.deploy.yarn.Client.createConfArchive`).
//!
//! This process reads the file with its own user's rights: it is told nothing that its user could
//! not read.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// The file in a container's directory: Java properties.
const FILE: &str = "__spark_conf__/__spark_conf__.properties";
/// A longer one is not Spark's.
const MAX_BYTES: u64 = 4 << 20;

/// Where a job says how many GPUs an executor gets: to Spark, or to YARN directly.
const EXECUTOR: &[&str] =
    &["spark.executor.resource.gpu.amount", "spark.yarn.executor.resource.yarn.io/gpu.amount"];
/// And the driver, in the application master's container.
const DRIVER: &[&str] =
    &["spark.driver.resource.gpu.amount", "spark.yarn.driver.resource.yarn.io/gpu.amount"];
/// And the application master, where the driver is elsewhere.
const MASTER: &[&str] = &["spark.yarn.am.resource.yarn.io/gpu.amount"];

/// How many GPUs the container in that directory asks for; none, if the job asks for no GPUs
/// there. Absent: this is no job of Spark.
pub fn gpus(directory: &Path, container: &str) -> Option<u32> {
    let properties = parse(&read(&directory.join(FILE))?);
    let value = |name: &&str| properties.get(*name).map(String::as_str);
    let is_cluster =
        properties.get("spark.submit.deployMode").is_some_and(|mode| mode == "cluster");
    let names = match (is_master(container), is_cluster) {
        (false, _) => EXECUTOR,
        (true, true) => DRIVER,
        (true, false) => MASTER,
    };
    match names.iter().find_map(value) {
        Some(amount) => amount.trim().parse().ok(),
        None => Some(0),
    }
}

/// Whether a container is the first of its attempt: the application master's.
fn is_master(container: &str) -> bool {
    let number = container.rsplit('_').next().unwrap_or_default();
    number.trim_start_matches('0') == "1"
}

fn read(path: &Path) -> Option<String> {
    // A pipe in its place would keep us waiting.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Java properties (`java.util.Properties.load`), as far as Spark's names and numbers need it: one
/// on each line, without escapes of Unicode.
fn parse(text: &str) -> HashMap<String, String> {
    let property = |line: &str| {
        let line = line.trim_start();
        if line.starts_with(['#', '!']) {
            return None;
        }
        let mut escaped = false;
        let end = line.find(|c: char| {
            let separates = !escaped && (c == '=' || c == ':' || c.is_whitespace());
            escaped = c == '\\' && !escaped;
            separates
        })?;
        let (name, value) = line.split_at(end);
        let value = value.trim_start();
        let value = value.strip_prefix(['=', ':']).unwrap_or(value);
        Some((name.replace('\\', ""), value.trim().replace('\\', "")))
    };
    text.lines().filter_map(property).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASTER_ID: &str = "container_e17_1410901177871_0001_02_000001";
    const EXECUTOR_ID: &str = "container_1410901177871_0001_01_000011";

    fn of(properties: &str, container: &str) -> Option<u32> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("__spark_conf__")).unwrap();
        std::fs::write(dir.path().join(FILE), properties).unwrap();
        gpus(dir.path(), container)
    }

    #[test]
    fn who_asks_for_how_many() {
        let text = "#Spark configuration.\n#Thu Jan 01\nspark.executor.resource.gpu.amount=2\n\
                    spark.driver.resource.gpu.amount=1\nspark.app.name=a\\=b\n";
        let cluster = format!("{text}spark.submit.deployMode=cluster\n");
        assert_eq!(of(&cluster, EXECUTOR_ID), Some(2));
        assert_eq!(of(&cluster, MASTER_ID), Some(1));
        let client = format!("{text}spark.submit.deployMode=client\n");
        assert_eq!(of(&client, EXECUTOR_ID), Some(2));
        assert_eq!(of(&client, MASTER_ID), Some(0));
        let direct = "spark.yarn.executor.resource.yarn.io/gpu.amount: 3";
        assert_eq!(of(direct, EXECUTOR_ID), Some(3));
        assert_eq!(of("spark.app.name=x", EXECUTOR_ID), Some(0));
        assert_eq!(of("spark.executor.resource.gpu.amount=many", EXECUTOR_ID), None);
    }

    #[test]
    fn without_spark_there_is_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(gpus(dir.path(), EXECUTOR_ID), None);
        std::fs::create_dir_all(dir.path().join(FILE)).unwrap();
        assert_eq!(gpus(dir.path(), EXECUTOR_ID), None);
    }
}
