//! The program `simulated-gpu`.

use std::path::Path;
use std::process::{Command, Output};

use simulated_nvml::state::Raised;
use simulated_nvml::{Fault, Node};

fn run(arguments: &[&str], directory: &Path) -> Output {
    let (command, rest) = arguments.split_first().unwrap();
    Command::new(env!("CARGO_BIN_EXE_simulated-gpu"))
        .args([command, "--dir"])
        .arg(directory)
        .args(rest)
        .output()
        .unwrap()
}

fn done(arguments: &[&str], directory: &Path) -> String {
    let output = run(arguments, directory);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], directory: &Path) -> String {
    let output = run(arguments, directory);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_node_is_prepared_and_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let file = path.join("more.toml");
    std::fs::write(&file, "[[gpu]]\nmodel = 't4'\n[[fault]]\ngpu = 0\nhang = true\n").unwrap();
    let file = file.to_str().unwrap();
    let lib = done(
        &["prepare", "--gpus", "a100:1,mig=1x3g.20gb", "--gpus", "h200:2", "--gpus", file],
        path,
    );
    assert!(Path::new(lib.trim()).join("libnvidia-ml.so.1").is_file(), "{lib}");
    let node = Node::open(path).unwrap();
    let models: Vec<_> = node.gpus.iter().map(|gpu| gpu.model.key).collect();
    assert_eq!(models, ["a100", "h200", "h200", "t4"]);
    assert_eq!(node.faults().unwrap()[0].gpu, Some(3));

    done(&["fault", "--clear"], path);
    assert_eq!(node.faults().unwrap(), []);
    done(&["fault", "--gpu", "1", "--lost"], path);
    done(&["fault", "--function", "nvmlInit_v2", "--error", "NO_PERMISSION"], path);
    assert_eq!(node.faults().unwrap().len(), 2);
    done(&["fault", "--function", "nvmlInit_v2", "--clear"], path);
    assert_eq!(node.faults().unwrap(), [Fault::lost(1)]);

    done(&["xid", "--gpu", "2", "--code", "79"], path);
    assert_eq!(node.state.event(0), Some(Raised { gpu: 2, kind: 8, data: 79 }));

    done(&["use", "--gpu", "1", "--mib", "701"], path);
    assert_eq!(node.state.used(1), 701 << 20);
    let pid = std::process::id().to_string();
    done(&["use", "--gpu", "0", "--slice", "0", "--mib", "5", "--pid", &pid], path);
    assert_eq!(node.state.uses(0)[0].bytes, 5 << 20);
}

#[test]
fn what_can_not_be_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for (arguments, why) in [
        (&["prepare", "--gpus", "a100:1,mig=2x3g.20gb+1x1g.5gb"][..], "8 memory slices"),
        (&["prepare", "--gpus", "a100:1,mig=4x2g.10gb"], "at most 3"),
        (&["prepare", "--gpus", "k80:1"], "known are"),
        (&["prepare", "--gpus", "nowhere.toml"], "nowhere.toml"),
        (&["prepare"], "--gpus"),
        (&["xid", "--gpu", "0", "--code", "79"], "topology.toml"),
    ] {
        let error = refused(arguments, path);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
    done(&["prepare", "--gpus", "t4:1"], path);
    for (arguments, why) in [
        (&["xid", "--gpu", "1", "--code", "79"][..], "no GPU 1"),
        (&["fault", "--gpu", "1", "--lost"], "no GPU 1"),
        (&["fault", "--gpu", "0"], "--lost"),
        (&["fault", "--lost"], "--gpu"),
        (&["fault", "--error", "OOPS"], "OOPS"),
        (&["use", "--gpu", "0", "--mib", "15000"], "can't be in use"),
        (&["use", "--gpu", "0", "--slice", "0", "--pid", "1", "--mib", "1"], "no slice"),
    ] {
        let error = refused(arguments, path);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
}
