//! What people and cluster managers do between apply and undo.

use crate::site::{Site, wanted};

#[test]
fn an_edit_of_something_else_stays() {
    for fixture in ["emr", "bigtop", "plain"] {
        let site = Site::like(fixture);
        let before = site.content();
        site.apply(&wanted("all", 2)).unwrap();
        let comment = "<!-- by hand -->\n</configuration>";
        for name in ["yarn-site.xml", "capacity-scheduler.xml"] {
            let edited = site.read(name).replace("</configuration>", comment);
            site.write(name, edited.as_bytes());
        }
        let undone = site.undo("all").unwrap();
        assert!(undone.kept.is_empty(), "{undone:?}");
        for name in ["yarn-site.xml", "capacity-scheduler.xml"] {
            let original = String::from_utf8(before[name].clone()).unwrap();
            let expected = original.replace("</configuration>", comment);
            assert_eq!(site.read(name), expected, "{fixture} {name}");
        }
        assert!(!site.conf().join(".creel").exists());
    }
}

#[test]
fn an_entry_that_was_edited_stays_and_is_told() {
    let site = Site::like("plain");
    site.apply(&wanted("all", 2)).unwrap();
    let edited = site.read("yarn-site.xml").replace("/usr/libexec/creel/yarn", "/opt/other");
    site.write("yarn-site.xml", edited.as_bytes());
    let undone = site.undo("all").unwrap();
    assert_eq!(undone.kept.len(), 1, "{undone:?}");
    assert!(undone.kept[0].contains("path-to-discovery-executables"));
    assert!(site.read("yarn-site.xml").contains("/opt/other"));
    assert!(!site.read("yarn-site.xml").contains("yarn.io/gpu"));
}

#[test]
fn what_others_added_to_a_list_stays() {
    let site = Site::like("plain");
    site.apply(&wanted("client", 0)).unwrap();
    let edited = site.read("resource-types.xml").replace("yarn.io/gpu", "yarn.io/gpu,yarn.io/fpga");
    site.write("resource-types.xml", edited.as_bytes());
    // The calculator has to stay for that resource: without it the ResourceManager would not start.
    let error = site.undo("all").unwrap_err();
    assert!(error.to_string().contains("DefaultResourceCalculator"), "{error}");
    assert_eq!(site.read("resource-types.xml"), edited);

    let scheduler = site.read("capacity-scheduler.xml");
    let settled = scheduler.replace("DominantResourceCalculator", "DominantResourceCalculator ");
    site.write("capacity-scheduler.xml", settled.as_bytes());
    let undone = site.undo("all").unwrap();
    assert_eq!(undone.kept.len(), 1, "{undone:?}");
    assert!(site.read("resource-types.xml").contains("<value>yarn.io/fpga</value>"));
}

#[test]
fn a_file_that_can_no_longer_be_read_is_left_alone() {
    let site = Site::like("plain");
    site.apply(&wanted("all", 2)).unwrap();
    let edited = site.read("yarn-site.xml").replace("</configuration>", "");
    site.write("yarn-site.xml", edited.as_bytes());
    let applied = site.content();
    let error = site.undo("all").unwrap_err();
    assert_eq!(error.kind(), creel_yarn::error::Kind::Refused, "{error}");
    assert!(error.to_string().contains("yarn-site.xml"), "{error}");
    assert_eq!(site.content(), applied);
}

#[test]
fn a_manager_that_writes_its_own_file_anew_gets_our_entries_again() {
    let site = Site::like("emr");
    site.apply(&wanted("all", 2)).unwrap();
    let anew = "<configuration><property><name>a</name><value>b</value></property></configuration>";
    site.write("yarn-site.xml", anew.as_bytes());
    assert!(!site.apply(&wanted("all", 2)).unwrap().is_empty());
    assert!(site.read("yarn-site.xml").contains("yarn.nodemanager.resource-plugins"));
    let undone = site.undo("all").unwrap();
    assert!(undone.kept.is_empty(), "{undone:?}");
    assert_eq!(site.read("yarn-site.xml"), anew);
}

#[test]
fn an_edit_and_a_second_apply_are_undone_together() {
    let site = Site::like("plain");
    let before = site.read("yarn-site.xml");
    site.apply(&wanted("client", 0)).unwrap();
    site.apply(&wanted("nm", 1)).unwrap();
    let edited = site.read("yarn-site.xml").replace("<!-- Site", "<!-- Edited\n Site");
    let edited = edited.replace("/usr/libexec/creel/yarn", "/elsewhere");
    site.write("yarn-site.xml", edited.as_bytes());
    assert_eq!(site.apply(&wanted("nm", 1)).unwrap().changes.len(), 1);
    site.undo("all").unwrap();
    let left = site.read("yarn-site.xml");
    assert!(!left.contains("yarn.io/gpu") && !left.contains("fail-fast"), "{left}");
    assert!(left.starts_with(&before[..before.find("<!-- Site").unwrap()]), "{left}");
    assert!(left.contains("<!-- Edited"), "{left}");
}

#[test]
fn files_that_are_gone_are_no_obstacle() {
    let site = Site::like("plain");
    site.apply(&wanted("all", 2)).unwrap();
    std::fs::remove_file(site.conf().join("resource-types.xml")).unwrap();
    site.undo("all").unwrap();
    assert!(!site.conf().join("resource-types.xml").exists());
    assert!(!site.read("yarn-site.xml").contains("yarn.io/gpu"));
}

#[test]
fn a_file_that_was_made_and_edited_stays() {
    let site = Site::like("plain");
    site.apply(&wanted("client", 0)).unwrap();
    let other = "  <property name='a' value='b'/>\n</configuration>";
    let edited = site.read("resource-types.xml").replace("</configuration>", other);
    site.write("resource-types.xml", edited.as_bytes());
    site.undo("all").unwrap();
    let left = site.read("resource-types.xml");
    assert!(left.contains("name='a'") && !left.contains("yarn.io/gpu"), "{left}");
}
