//! Any layout, and any damage.

use creel_yarn::configuration::Document;
use proptest::prelude::*;

use crate::site::{Site, wanted};

/// White space of any kind.
fn space() -> impl Strategy<Value = String> {
    "[ \t\n]{0,4}|\r\n {0,3}"
}

/// What may stand between entries.
fn between() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => space(),
        1 => "<!-- [a-zé<>&\n-]{0,12}x -->".prop_filter("no --", |c| !c[4..c.len() - 3].contains("--")),
        1 => Just("<?note x?>".to_owned()),
        1 => Just("<!-- <property><name>yarn.resource-types</name><value>no</value></property> -->".to_owned()),
    ]
}

/// An entry, in one of the forms that Hadoop reads.
fn entry() -> impl Strategy<Value = String> {
    let key = prop_oneof![
        3 => "[a-z]{1,6}(\\.[a-z-]{1,6}){0,2}",
        1 => Just("yarn.resource-types".to_owned()),
        1 => Just("yarn.nodemanager.resource-plugins".to_owned()),
        1 => Just("yarn.nodemanager.resource-plugins.fail-fast".to_owned()),
        1 => Just("yarn.nodemanager.resource-plugins.gpu.path-to-discovery-executables".to_owned()),
    ];
    let value = prop_oneof![
        3 => "[a-z/,.é ]{0,10}",
        1 => Just("a &amp; &#x62;".to_owned()),
        1 => Just("yarn.io/fpga,\n  yarn.io/gpu".to_owned()),
    ];
    (key, value, 0..6, [space(), space(), space(), space()]).prop_map(|(key, value, form, [a, b, c, d])| {
        match form {
            0 => format!("<property name='{key}' value=\"{value}\"/>"),
            1 => format!("<property>{a}<value>{value}</value>{b}<name>{c}{key}</name>{d}</property>"),
            2 => format!("<property>{a}<name>{key}</name>{b}<value>{value}<!-- c --></value>{c}</property>"),
            3 => format!("<property>{a}<name>{key}</name>{b}<description>{value}</description>{c}<value>{value}</value>{d}</property>"),
            4 => format!("<property {a}>{b}<name>{key}</name>{c}<value/>{d}</property>"),
            _ => format!("<property>{a}<name>{key}</name>{b}<value>{value}</value>{c}<final>false</final>{d}</property>"),
        }
    })
}

/// A configuration file.
fn file() -> impl Strategy<Value = String> {
    let content = prop::collection::vec((between(), entry()), 0..6);
    (prop::bool::ANY, content, between(), space()).prop_map(|(declared, content, last, end)| {
        let content: String =
            content.into_iter().flat_map(|(between, entry)| [between, entry]).collect();
        let declaration = if declared { "<?xml version=\"1.0\"?>\n" } else { "" };
        format!("{declaration}<configuration>{content}{last}</configuration>{end}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_layout_apply_is_idempotent_and_undo_its_inverse(
        yarn_site in file(),
        types in prop::option::of(file()),
        scheduler in prop::option::of(file()),
    ) {
        let site = Site::of(&[("yarn-site.xml", yarn_site.as_bytes())]);
        for (name, content) in [("resource-types.xml", types), ("capacity-scheduler.xml", scheduler)] {
            if let Some(content) = content {
                site.write(name, content.as_bytes());
            }
        }
        let before = site.content();
        let plan = site.apply(&wanted("all", 2)).unwrap();
        prop_assert!(site.apply(&wanted("all", 2)).unwrap().is_empty());
        // A line of the diff that takes away is one whose value was changed.
        for (file, after) in &plan.after {
            let old = before.get(file.name()).map(|b| String::from_utf8_lossy(b).into_owned());
            let comments = |text: &str| text.matches("<!--").count();
            if let Some(old) = old {
                prop_assert!(comments(after.text()) == comments(&old));
                prop_assert!(after.text().len() + 200 > old.len());
            }
        }
        site.undo("all").unwrap();
        prop_assert_eq!(site.content(), before);
    }

    #[test]
    fn an_edit_elsewhere_survives_whatever_the_layout(yarn_site in file()) {
        let site = Site::of(&[("yarn-site.xml", yarn_site.as_bytes())]);
        site.apply(&wanted("all", 2)).unwrap();
        let edit = |text: &str| text.replacen("<configuration>", "<configuration><!-- by hand -->", 1);
        site.write("yarn-site.xml", edit(&site.read("yarn-site.xml")).as_bytes());
        site.undo("all").unwrap();
        let left = site.read("yarn-site.xml");
        let same = |text: &str| {
            let items = Document::parse(text.as_bytes()).unwrap().items().to_vec();
            format!("{items:?}").replace(|c: char| c.is_ascii_digit(), "")
        };
        prop_assert!(left.contains("<!-- by hand -->"));
        prop_assert_eq!(same(&left), same(&edit(&yarn_site)));
    }

    #[test]
    fn damage_is_an_error_or_a_valid_file_and_never_a_panic(
        yarn_site in file(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0..4, any::<u8>()), 1..4),
    ) {
        let mut bytes = yarn_site.into_bytes();
        for (at, what, byte) in damage {
            let at = at.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, b"<>&/!?-'\"]"[usize::from(byte) % 10]),
                _ => { bytes.truncate(at); bytes.push(byte); }
            }
        }
        let site = Site::of(&[("yarn-site.xml", &bytes)]);
        let before = site.content();
        if site.apply(&wanted("all", 2)).is_ok() {
            prop_assert!(site.apply(&wanted("all", 2)).unwrap().is_empty());
            site.undo("all").unwrap();
        }
        prop_assert_eq!(site.content(), before);
    }
}
