//! Which daemons don't know yet what was written.

use std::fs;

use creel_yarn::daemons::Daemon;
use creel_yarn::restart::due;

use crate::site::{Site, wanted};

const NODE_MANAGER: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";

/// A NodeManager that started so many seconds after 1970, on the machine of a site.
fn nodemanager(site: &Site, started: u64) {
    let proc = site.root().join("proc");
    fs::create_dir_all(proc.join("7")).unwrap();
    fs::write(proc.join("stat"), format!("btime {started}\n")).unwrap();
    fs::write(proc.join("7/cmdline"), format!("java\0{NODE_MANAGER}\0")).unwrap();
    fs::write(proc.join("7/status"), "Uid:\t0\t0\t0\t0\n").unwrap();
    fs::write(proc.join("7/stat"), format!("7 (java) S 1 {}0 0", "0 ".repeat(17))).unwrap();
}

const LONG_AGO: u64 = 1_000_000_000;
const FAR_AHEAD: u64 = 10_000_000_000;

#[test]
fn a_daemon_that_started_before_is_due_and_one_that_started_after_is_not() {
    let site = Site::like("plain");
    nodemanager(&site, LONG_AGO);
    assert_eq!(due(&site.conf(), &site.root()).unwrap(), []);
    site.apply(&wanted("all", 2)).unwrap();
    let found = due(&site.conf(), &site.root()).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].running.daemon, Daemon::NodeManager);
    assert!(found[0].keys.iter().any(|key| key == "yarn.resource-types"), "{found:?}");
    assert!(found[0].keys.iter().all(|key| !key.contains("calculator")), "{found:?}");
    nodemanager(&site, FAR_AHEAD);
    assert_eq!(due(&site.conf(), &site.root()).unwrap(), []);
}

#[test]
fn what_is_written_again_is_news_only_to_who_started_without_it() {
    let site = Site::like("plain");
    let taken_out = site.read("yarn-site.xml");
    site.apply(&wanted("all", 2)).unwrap();
    let since = |site: &Site| {
        nodemanager(site, LONG_AGO);
        due(&site.conf(), &site.root()).unwrap()[0].since
    };
    let first = since(&site);
    // As if it had been applied an hour ago, and the daemon started half an hour later.
    let record = site.read(".creel/record.json");
    let earlier = record.replace(&first.to_string(), &(first - 3600).to_string());
    site.write(".creel/record.json", earlier.as_bytes());
    nodemanager(&site, first - 1800);
    assert_eq!(due(&site.conf(), &site.root()).unwrap(), []);

    site.write("yarn-site.xml", taken_out.as_bytes());
    site.apply(&wanted("all", 2)).unwrap();
    nodemanager(&site, first - 1800);
    assert_eq!(due(&site.conf(), &site.root()).unwrap(), []);

    // One that starts while the entries are out does not know them.
    site.write("yarn-site.xml", taken_out.as_bytes());
    let modified = fs::metadata(site.conf().join("yarn-site.xml")).unwrap().modified().unwrap();
    let modified = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    nodemanager(&site, modified);
    site.apply(&wanted("all", 2)).unwrap();
    nodemanager(&site, modified - 1);
    assert_eq!(due(&site.conf(), &site.root()).unwrap().len(), 1);
}
