//! Each fixture: what is changed in it, and that it comes back.

use creel_yarn::queue::Queue;
use creel_yarn::{Error, Wanted};

use crate::site::{Site, wanted};

const FIXTURES: [&str; 4] = ["emr", "bigtop", "tencent", "plain"];

#[test]
fn what_was_applied_is_undone_byte_for_byte() {
    for fixture in FIXTURES {
        for roles in ["all", "rm", "nm", "client", "nm,client"] {
            let site = Site::like(fixture);
            let before = site.content();
            let plan = site.apply(&wanted(roles, 2)).unwrap();
            assert!(!plan.is_empty(), "{fixture} {roles}");
            assert_ne!(site.content(), before);
            let undone = site.undo("all").unwrap();
            assert!(undone.kept.is_empty() && undone.edited.is_empty(), "{undone:?}");
            assert_eq!(site.content(), before, "{fixture} {roles}");
        }
    }
}

#[test]
fn applied_twice_it_changes_nothing() {
    for fixture in FIXTURES {
        let site = Site::like(fixture);
        site.apply(&wanted("all", 2)).unwrap();
        let once = site.content();
        assert!(site.apply(&wanted("all", 2)).unwrap().is_empty(), "{fixture}");
        assert_eq!(site.diff(&wanted("all", 2)).unwrap(), "");
        assert_eq!(site.content(), once);
    }
}

#[test]
fn roles_are_applied_and_undone_one_by_one() {
    for fixture in FIXTURES {
        let site = Site::like(fixture);
        let before = site.content();
        site.apply(&wanted("client", 0)).unwrap();
        let client = site.content();
        site.apply(&wanted("nm", 2)).unwrap();
        site.undo("nm").unwrap();
        let files = |content: &std::collections::BTreeMap<String, Vec<u8>>| {
            let mut content = content.clone();
            content.retain(|name, _| !name.starts_with(".creel/"));
            content
        };
        assert_eq!(files(&site.content()), files(&client), "{fixture}");
        site.undo("rm").unwrap();
        assert_eq!(files(&site.content()), files(&client), "{fixture}");
        site.undo("client").unwrap();
        assert_eq!(site.content(), before, "{fixture}");
    }
}

#[test]
fn of_all_roles_the_nodes_own_entries_can_be_undone_alone() {
    let site = Site::like("emr");
    site.apply(&wanted("all", 2)).unwrap();
    let undone = site.undo("nm").unwrap();
    assert_eq!(undone.changes.len(), 3);
    assert!(!site.read("yarn-site.xml").contains("resource-plugins"));
    assert!(site.read("resource-types.xml").contains("yarn.io/gpu"));
    assert!(site.undo("all").unwrap().kept.is_empty());
    assert!(site.undo("all").unwrap().is_empty());
}

#[test]
fn lists_are_merged_where_they_stand() {
    let site = Site::like("tencent");
    site.apply(&wanted("all", 2)).unwrap();
    assert!(site.read("yarn-site.xml").contains("<value>example.com/asic,yarn.io/gpu</value>"));
    assert!(!site.conf().join("resource-types.xml").exists());

    let site = Site::like("emr");
    site.apply(&wanted("all", 2)).unwrap();
    let scheduler = site.read("capacity-scheduler.xml");
    assert!(scheduler.contains("DominantResourceCalculator</value>\n    <description>"));

    let site = Site::like("bigtop");
    let plan = site.apply(&wanted("all", 2)).unwrap();
    let types = site.read("resource-types.xml");
    assert!(types.contains("yarn.io/fpga,\n   example.com/license,yarn.io/gpu</value>"), "{types}");
    // The included list is overridden, not edited.
    let yarn_site = site.read("yarn-site.xml");
    assert!(yarn_site.contains("<value>yarn.io/fpga,yarn.io/gpu</value>"), "{yarn_site}");
    assert!(yarn_site.contains("<value>/usr/libexec/creel/yarn</value>"), "{yarn_site}");
    assert!(yarn_site.ends_with("\n</configuration>"), "{yarn_site}");
    let included = |name: &str| !plan.after.keys().any(|file| file.name() == name);
    assert!(included("capacity-scheduler.xml") && included("yarn-common.xml"));
}

#[test]
fn the_diff_is_what_apply_does() {
    let site = Site::like("plain");
    let diff = site.diff(&wanted("all", 1)).unwrap();
    let before = site.content();
    for line in [
        "--- /dev/null",
        "+    <name>yarn.resource-types</name>",
        "+  <property><name>yarn.scheduler.capacity.resource-calculator</name>",
        " <!-- Site specific YARN configuration properties -->",
    ] {
        assert!(diff.lines().any(|known| known.starts_with(line)), "{line}:\n{diff}");
    }
    assert_eq!(site.content(), before);
}

#[test]
fn a_node_without_gpu_enables_nothing() {
    let site = Site::like("plain");
    let plan = site.apply(&wanted("all", 0)).unwrap();
    assert!(plan.changes.iter().all(|change| !change.key.contains("nodemanager")), "{plan:?}");
    assert!(plan.notices.iter().any(|notice| notice.contains("no GPU")), "{plan:?}");
    assert!(site.read("resource-types.xml").contains("yarn.io/gpu"));
}

#[test]
fn the_maximum_is_set_only_if_asked_for() {
    let site = Site::like("bigtop");
    let key = "yarn.io/gpu.maximum-allocation";
    assert!(!site.diff(&wanted("all", 1)).unwrap().contains(key));
    site.apply(&Wanted { max_gpus_per_container: Some(1), ..wanted("all", 1) }).unwrap();
    assert!(site.read("resource-types.xml").contains(key));
}

#[test]
fn a_queue_gets_its_label_on_the_whole_path() {
    let queue = |name: &str| {
        let queue = Queue { name: name.to_owned(), label: "gpu".to_owned() };
        Wanted { queue: Some(queue), ..wanted("rm", 0) }
    };
    let site = Site::like("emr");
    let before = site.content();
    let plan = site.apply(&queue("gpu")).unwrap();
    let scheduler = site.read("capacity-scheduler.xml");
    for (key, value) in [
        ("root.accessible-node-labels.gpu.capacity", "100"),
        ("root.gpu.accessible-node-labels.gpu.capacity", "100"),
        ("root.gpu.accessible-node-labels", "CORE,gpu"),
    ] {
        let key = format!("yarn.scheduler.capacity.{key}");
        assert!(plan.changes.iter().any(|c| c.key == key && c.value == value), "{plan:?}");
        assert!(scheduler.contains(&key));
    }
    // A second queue would share the label, and who gets how much is not for a program to say.
    assert!(matches!(site.plan(&queue("root.default")), Err(Error::Queue { .. })));
    // Its children would have none of what it has, and the ResourceManager would not start.
    assert!(matches!(site.plan(&queue("root")), Err(Error::Queue { .. })));
    assert!(matches!(site.plan(&queue("none")), Err(Error::NoQueue { .. })));
    site.undo("all").unwrap();
    assert_eq!(site.content(), before);
}
