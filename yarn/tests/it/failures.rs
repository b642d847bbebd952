//! What must fail, and leave everything as it was.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use creel_yarn::answer::Refusal;
use creel_yarn::error::Kind;
use creel_yarn::plan::NvidiaSmi;
use creel_yarn::{Error, Wanted, files};

use crate::site::{Site, wanted};

/// A directory with a capacity-scheduler.xml, and these entries in a yarn-site.xml.
fn with(entries: &str) -> Site {
    let site = format!("<configuration>{entries}</configuration>");
    Site::of(&[("yarn-site.xml", site.as_bytes()), ("capacity-scheduler.xml", b"<configuration/>")])
}

/// The error of apply, which has changed nothing.
fn fails(site: &Site, wanted: &Wanted) -> Error {
    let before = site.content();
    let error = site.apply(wanted).unwrap_err();
    assert_eq!(site.content(), before, "{error}");
    error
}

#[test]
fn who_comes_second_leaves_the_record_of_the_first() {
    let site = with("");
    let before = site.content();
    let wanted = wanted("all", 1);
    // Read before the first has written.
    let directory = site.directory().unwrap();
    let plan = site.plan(&wanted).unwrap();
    site.apply(&wanted).unwrap();
    let applied = site.content();
    files::apply(&directory, &plan, &[]).unwrap_err();
    let configuration = |name: &String| !name.starts_with(".creel");
    let now = site.content();
    assert!(
        applied
            .iter()
            .filter(|(name, _)| configuration(name))
            .all(|(name, content)| { now.get(name) == Some(content) })
    );
    site.undo("all").unwrap();
    assert_eq!(site.content(), before);
}

#[test]
fn a_final_entry_is_not_fought() {
    for (key, value) in [
        ("yarn.nodemanager.resource-plugins", "yarn.io/fpga"),
        ("yarn.resource-types", ""),
        ("yarn.scheduler.capacity.resource-calculator", "x.DefaultResourceCalculator"),
    ] {
        let site = with(&format!(
            "<property>\n<name>{key}</name><value>{value}</value><final>true</final></property>"
        ));
        let error = fails(&site, &wanted("all", 1));
        assert!(matches!(error, Error::Final { line: 1, .. }), "{error}");
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains(key), "{error}");
    }
    let right = "<property><name>yarn.resource-types</name><value>yarn.io/gpu</value><final>true</final></property>";
    with(right).apply(&wanted("client", 0)).unwrap();
}

#[test]
fn what_stops_a_daemon_is_refused() {
    let linux = "<property><name>yarn.nodemanager.container-executor.class</name><value>x.LinuxContainerExecutor</value></property>";
    let unit =
        "<property><name>yarn.resource-types.yarn.io/gpu.units</name><value>G</value></property>";
    let list = "<property><name>yarn.nodemanager.resource-plugins.gpu.allowed-gpu-devices</name><value>2,4</value></property>";
    for (entries, words) in [(linux, "devices controller"), (unit, "unit"), (list, "index:minor")] {
        let error = fails(&with(entries), &wanted("all", 1));
        assert!(matches!(error, Error::Dangerous { .. }), "{error}");
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains(words), "{error}");
    }
    let store = "<property><name>yarn.scheduler.configuration.store.class</name><value>zk</value></property>";
    let error = fails(&with(store), &wanted("all", 1));
    assert!(error.to_string().contains("schedulerconf"), "{error}");
    with(store).apply(&wanted("nm,client", 1)).unwrap();
}

#[test]
fn an_nvidia_smi_that_yarn_would_refuse_is_not_configured() {
    let site = Site::like("plain");
    let refused = NvidiaSmi {
        directory: "/usr/libexec/creel/yarn".into(),
        answer: Err(Refusal("line 1: there is text outside the root element".to_owned())),
    };
    let wanted = |roles| Wanted { nvidia_smi: Some(refused.clone()), ..wanted(roles, 0) };
    for roles in ["nm", "all"] {
        let error = fails(&site, &wanted(roles));
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains("/usr/libexec/creel/yarn/nvidia-smi"), "{error}");
    }
    site.apply(&wanted("rm,client")).unwrap();
}

#[test]
fn files_that_hadoop_cannot_read_are_errors_with_a_line() {
    let bomb = b"<!DOCTYPE configuration [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;&a;\">]>\n<configuration><property><name>x</name><value>&b;</value></property></configuration>";
    for (content, words) in [
        (&bomb[..], "DOCTYPE"),
        (b"<configuration>\n<property></configuration>", ":2:"),
        (b"", "no root element"),
        (b"<configuration>\xe9</configuration>", "UTF-8"),
        (b"<?xml version='1.0' encoding='GB18030'?><configuration/>", "gb18030"),
        (b"\xff\xfe<\x00c\x00", "never closed"),
    ] {
        for name in
            ["yarn-site.xml", "resource-types.xml", "capacity-scheduler.xml", "core-site.xml"]
        {
            let site = Site::like("plain");
            site.write(name, content);
            let error = fails(&site, &wanted("all", 1)).to_string();
            assert!(error.contains(name), "{error}");
            assert!(error.contains(words) || words == "never closed", "{error}");
        }
    }
}

#[test]
fn encodings_and_line_ends_stay() {
    let plain =
        "<?xml version=\"1.0\"?>\r\n<configuration>\r\n\t<!-- é -->\r\n</configuration>\r\n";
    let utf16 = |text: &str| {
        let text = text.replace("?>", " encoding=\"UTF-16\"?>");
        [0xfeff].into_iter().chain(text.encode_utf16()).flat_map(u16::to_be_bytes).collect()
    };
    let latin1: Vec<u8> =
        plain.replace("?>", " encoding='ISO-8859-1'?>").chars().map(|c| c as u8).collect();
    for content in [
        plain.as_bytes().to_vec(),
        ["\u{feff}", plain].concat().into_bytes(),
        utf16(plain),
        latin1,
        plain.trim_end().as_bytes().to_vec(),
    ] {
        let site = Site::like("plain");
        site.write("yarn-site.xml", &content);
        site.apply(&wanted("all", 1)).unwrap();
        let after = &site.content()["yarn-site.xml"];
        let start = content.iter().zip(after).take_while(|(one, other)| one == other).count();
        assert!(start > content.len() / 2, "{start}");
        assert!(
            !String::from_utf8_lossy(after).replace('\0', "").replace("\r\n", "").contains('\n')
        );
        site.undo("all").unwrap();
        assert_eq!(site.content()["yarn-site.xml"], content);
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_left_alone() {
    let site = Site::like("plain");
    let conf = site.conf();
    std::fs::set_permissions(&conf, std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::File::create(conf.join("probe")).is_ok() {
        // Root may write everywhere, but not on a file system that is read-only.
        std::fs::remove_file(conf.join("probe")).unwrap();
        let Some(mounted) = Mount::over(&conf, "ro") else { return };
        let error = fails(&site, &wanted("all", 1));
        assert!(matches!(error, Error::Write { .. }), "{error}");
        drop(mounted);
    } else {
        let error = fails(&site, &wanted("all", 1));
        assert_eq!(error.kind(), Kind::NotAllowed, "{error}");
    }
}

#[test]
fn a_full_disk_leaves_everything_as_it_was() {
    let site = Site::like("emr");
    let Some(_mounted) = Mount::over(&site.conf(), "size=64k") else { return };
    let files = site.content();
    let filler = std::iter::repeat_n(b'x', 1 << 20);
    let path = site.conf().join("filler");
    // The file system is full when this fails.
    std::fs::write(&path, filler.collect::<Vec<_>>()).unwrap_err();
    let error = fails(&site, &wanted("all", 1));
    assert!(matches!(error, Error::Write { .. }), "{error}");
    // With room for some of it, it is all or nothing as well.
    for pages in 1..12 {
        let length = std::fs::metadata(&path).unwrap().len();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(length.saturating_sub(4096)).unwrap();
        if site.apply(&wanted("all", 1)).is_ok() {
            assert!(pages > 1);
            site.undo("all").unwrap();
            break;
        }
        let mut now = site.content();
        now.remove("filler");
        assert_eq!(now, files, "{pages}");
    }
    std::fs::remove_file(&path).unwrap();
    assert_eq!(site.content(), files);
}

#[test]
fn a_change_by_another_meanwhile_is_noticed() {
    let site = Site::like("plain");
    let directory = site.directory().unwrap();
    let plan = site.plan(&wanted("all", 1)).unwrap();
    site.write("yarn-site.xml", b"<configuration/>");
    let before = site.content();
    let error = creel_yarn::files::apply(&directory, &plan, &[]).unwrap_err();
    assert!(matches!(error, Error::Changed { .. }), "{error}");
    assert_eq!(site.content(), before);
}

#[test]
fn a_record_of_a_newer_version_is_not_touched() {
    let site = Site::like("plain");
    site.apply(&wanted("client", 1)).unwrap();
    let record = site.read(".creel/record.json");
    for broken in [record.replace("\"schema\": 1", "\"schema\": 9"), record[..9].to_owned()] {
        site.write(".creel/record.json", broken.as_bytes());
        let before = site.content();
        assert!(matches!(site.undo("all"), Err(Error::Record { .. })));
        assert!(matches!(site.apply(&wanted("nm", 1)), Err(Error::Record { .. })));
        assert_eq!(site.content(), before);
    }
}

/// A tmpfs over a directory, with its files in it, where this process may mount.
struct Mount(std::path::PathBuf);

impl Mount {
    fn over(path: &std::path::Path, options: &str) -> Option<Self> {
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
        };
        let kept = path.with_file_name("kept");
        run("cp", &["-a".as_ref(), path.as_ref(), kept.as_ref()]).then_some(())?;
        let size = if options == "ro" { "size=1m" } else { options };
        let arguments = ["-t", "tmpfs", "-o", size, "tmpfs"].map(std::ffi::OsStr::new);
        run("mount", &[&arguments[..], &[path.as_ref()]].concat()).then_some(())?;
        let mount = Self(path.to_owned());
        let from = kept.join(".");
        run("cp", &["-a".as_ref(), from.as_ref(), path.as_ref()]).then_some(())?;
        if options == "ro" {
            run("mount", &["-o".as_ref(), "remount,ro".as_ref(), path.as_ref()]).then_some(())?;
        }
        Some(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().unwrap();
    }
}
