//! `creel yarn diff`, `apply` and `undo`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use creel_settings::{Settings, Sources};
use creel_yarn::daemons;
use creel_yarn::effective::Effective;
use creel_yarn::files::{self, Undone};
use creel_yarn::isolation::{self, Isolation};
use creel_yarn::plan::{Change, Plan, Wanted};
use creel_yarn::queue::{self, Queue};
use creel_yarn::restart::{self, Restart};
use creel_yarn::{Directory, Role, Roles};
use serde::Serialize;

use super::conf_dir;
use crate::api;
use crate::cli::stdout;
use crate::error::Error;
use crate::yarn::nvidia_smi;
use crate::yarn::provider::label;

/// The machine.
const ROOT: &str = "/";

/// What is to be shown or written.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    conf_dir: conf_dir::Arguments,
    /// What this machine is to YARN: rm, nm, client, several with commas, or all
    #[arg(long, value_name = "ROLE", default_value = "all")]
    role: Roles,
    /// GPUs that one container may ask for, in the whole cluster; 1 for MIG slices [default: the
    /// setting yarn.max_gpus_per_container]
    #[arg(long, value_name = "N")]
    max_gpus_per_container: Option<usize>,
    /// Directory of the nvidia-smi that NodeManagers ask [default: the setting yarn.nvidia_smi_dir,
    /// else Creel's own]
    #[arg(long, value_name = "DIR")]
    nvidia_smi_dir: Option<PathBuf>,
    /// Give this queue all of the nodes with a label: its name, or its path from root
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The label of --queue
    #[arg(long, value_name = "LABEL", default_value = "gpu", requires = "queue", value_parser = label::parse)]
    label: String,
}

/// What is to be taken back.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArguments {
    #[command(flatten)]
    conf_dir: conf_dir::Arguments,
    /// Take back what these roles alone need: rm, nm, client, several with commas, or all
    #[arg(long, value_name = "ROLE", default_value = "all")]
    role: Roles,
}

/// What `diff` and `apply` answer, as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    conf_dir: &'a Path,
    roles: &'a Roles,
    changes: &'a [Change],
    /// The changes as a unified diff.
    diff: String,
    /// Whether they were made.
    applied: bool,
    restarts: &'a [Restart],
    isolation: &'a Isolation,
    notices: &'a [String],
}

/// What `undo` answers, as JSON.
#[derive(Serialize)]
struct UndoAnswer<'a> {
    schema: u32,
    conf_dir: &'a Path,
    restored: &'a [PathBuf],
    removed: &'a [PathBuf],
    edited: &'a [PathBuf],
    changes: &'a [Change],
    kept: &'a [String],
    restarts: &'a [Restart],
}

/// A directory, and what has to change in it.
struct Prepared {
    directory: Directory,
    plan: Plan,
    isolation: Isolation,
    restarts: Vec<Restart>,
}

impl Arguments {
    fn prepare(&self, config: Option<PathBuf>) -> Result<Prepared, Error> {
        let settings = load(config)?;
        let directory = Directory::read(&self.conf_dir.find(&settings)?.path)?;
        let nvidia_smi = match &self.nvidia_smi_dir {
            Some(directory) => absolute(directory)?,
            None => nvidia_smi::directory(&settings),
        };
        let for_nm = self.role.has(Role::NodeManager);
        let configured = settings.yarn_max_gpus_per_container;
        let wanted = Wanted {
            roles: self.role.clone(),
            nvidia_smi: for_nm.then(|| nvidia_smi::ask(nvidia_smi)),
            max_gpus_per_container: self
                .max_gpus_per_container
                .or(Some(configured).filter(|count| *count > 0)),
            queue: self.queue.clone().map(|name| Queue { name, label: self.label.clone() }),
        };
        let root = Path::new(ROOT);
        let plan = Plan::make(&directory, &wanted, root)?;
        let effective = Effective::of_yarn(&directory, &plan.documents(&directory));
        let isolation = isolation::examine(&effective, directory.path(), root);
        let restarts = restart::needed(&plan.changes, directory.path(), root);
        Ok(Prepared { directory, plan, isolation, restarts })
    }
}

impl Prepared {
    fn json(&self, roles: &Roles, applied: bool) -> Result<(), Error> {
        stdout::json(&Answer {
            schema: api::SCHEMA,
            conf_dir: self.directory.path(),
            roles,
            changes: &self.plan.changes,
            diff: files::diff(&self.directory, &self.plan),
            applied,
            restarts: &self.restarts,
            isolation: &self.isolation,
            notices: &self.plan.notices,
        })
    }
}

pub(super) fn diff(
    arguments: &Arguments,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    let prepared = arguments.prepare(config)?;
    if json {
        return prepared.json(&arguments.role, false);
    }
    for notice in prepared.plan.notices.iter().chain(&prepared.isolation.notices) {
        // Nobody is left to be told if this fails.
        let _ = writeln!(std::io::stderr(), "creel: {notice}");
    }
    stdout::write(files::diff(&prepared.directory, &prepared.plan).as_bytes())
}

pub(super) fn apply(
    arguments: &Arguments,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    let prepared = arguments.prepare(config)?;
    let running = daemons::running(Path::new(ROOT), prepared.directory.path());
    let written = files::apply(&prepared.directory, &prepared.plan, &running)?;
    if json {
        return prepared.json(&arguments.role, true);
    }
    stdout::write(told(&prepared, &written, arguments.queue.is_none()).as_bytes())
}

pub(super) fn undo(
    arguments: &UndoArguments,
    config: Option<PathBuf>,
    json: bool,
) -> Result<(), Error> {
    let conf_dir = arguments.conf_dir.find(&load(config)?)?.path;
    let undone = files::undo(&conf_dir, &arguments.role, Path::new(ROOT))?;
    let restarts = restart::needed(&undone.changes, &conf_dir, Path::new(ROOT));
    if json {
        return stdout::json(&UndoAnswer {
            schema: api::SCHEMA,
            conf_dir: &conf_dir,
            restored: &undone.restored,
            removed: &undone.removed,
            edited: &undone.edited,
            changes: &undone.changes,
            kept: &undone.kept,
            restarts: &restarts,
        });
    }
    stdout::write(told_undone(&conf_dir, &undone, &restarts).as_bytes())
}

fn absolute(directory: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(directory)
        .map_err(|error| Error::Usage(format!("{}: {error}", directory.display())))
}

fn load(config: Option<PathBuf>) -> Result<Settings, Error> {
    Ok(Settings::load(&Sources::of_process(config, Vec::new()))?.settings)
}

/// What `apply` says to people.
fn told(prepared: &Prepared, written: &[PathBuf], show_labels: bool) -> String {
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{line}").expect("a string takes any text");
    if prepared.plan.is_empty() {
        say(&format!("{}: nothing to change", prepared.directory.path().display()));
    }
    for path in written {
        say(&format!("{}: written", path.display()));
        let of_file = |change: &&Change| prepared.directory.file(change.file) == *path;
        for change in prepared.plan.changes.iter().filter(of_file) {
            say(&format!("  {} = {}", change.key, change.value));
            say(&format!("    {}", change.reason));
        }
    }
    say_restarts(&mut say, &prepared.restarts);
    say(&format!("isolation: {}", prepared.isolation.summary));
    for notice in prepared.plan.notices.iter().chain(&prepared.isolation.notices) {
        say(&format!("note: {notice}"));
    }
    if show_labels && prepared.directory.bytes(creel_yarn::File::CapacityScheduler).is_some() {
        say(
            "to keep nodes with GPUs for jobs that ask for them, label them, and give a queue the \
             label, which creel yarn apply --queue NAME does, for a queue root.NAME by:",
        );
        for (key, value) in queue::example("root.NAME", "gpu") {
            say(&format!("  {key} = {value}"));
        }
    }
    text
}

/// What `undo` says to people.
fn told_undone(conf_dir: &Path, undone: &Undone, restarts: &[Restart]) -> String {
    let mut text = String::new();
    let mut say = |line: &str| writeln!(text, "{line}").expect("a string takes any text");
    if undone.is_empty() && undone.kept.is_empty() {
        say(&format!("{}: nothing to undo", conf_dir.display()));
    }
    for (paths, words) in [
        (&undone.restored, "as it was"),
        (&undone.removed, "removed, as it was not there before"),
        (&undone.edited, "without the entries that creel wrote; the rest stays"),
    ] {
        for path in paths {
            say(&format!("{}: {words}", path.display()));
        }
    }
    for kept in &undone.kept {
        say(&format!("{kept} was edited since, and stays"));
    }
    say_restarts(&mut say, restarts);
    text
}

fn say_restarts(say: &mut impl FnMut(&str), restarts: &[Restart]) {
    if !restarts.is_empty() {
        say("to take effect, in this order:");
    }
    for (number, restart) in (1..).zip(restarts) {
        say(&format!("  {number}. {restart}"));
    }
}
