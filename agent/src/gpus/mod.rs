//! The node's GPUs: what they are, and whether they are fit for use.
//!
//! Both come from `creel-discovery`, a process of its own: its call into the driver may hang.
//!
//! - `discovery`: one look at the GPUs.
//! - `events`: errors that the driver reports as they happen. `losses`: what executors lost.
//! - `view`: what the control API shows of it. `surroundings`: what an executor is told of it.
//! - `snapshot`: what nvidia-smi for YARN shows of it, in a file. `layout`: how that changes.

mod discovery;
mod events;
mod layout;
mod losses;
mod snapshot;
mod surroundings;
mod view;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use creel_discovery::snapshot::Holder;
use creel_discovery::{Inventory, Snapshot};
use creel_settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use self::discovery::Discovery;
use self::events::Faults;
pub use self::losses::Losses;
use self::snapshot::{Keeper, Kept};
pub use self::surroundings::Surroundings;
use crate::error::Error;
use crate::peer::Proc;
use crate::run_dir::RunDir;
use crate::state_dir::StateDir;
use crate::{api, programs};

/// A look at the GPUs that is not older needs no new one.
const FRESH: Duration = Duration::from_secs(1);
/// How long who only asks waits for a look; it goes on.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a question waits for the first look ever.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How long an executor that starts waits for a look; it goes on.
const AT_A_START: Duration = Duration::from_secs(1);

/// The node's GPUs; clones share them.
#[derive(Clone, Debug)]
pub struct Gpus {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: watch::Receiver<Arc<Settings>>,
    program: PathBuf,
    /// One look at a time.
    discovery: tokio::sync::Mutex<Discovery>,
    seen: watch::Sender<Option<Seen>>,
    faults: Mutex<Faults>,
    losses: Losses,
    keeper: tokio::sync::Mutex<Keeper>,
    kept: watch::Receiver<Kept>,
}

/// Something that can be given to one user alone: a whole GPU or a MIG slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Place among the node's units, from 0: its address for Spark.
    pub address: u32,
    /// `GPU-…` or `MIG-…`; absent where the driver doesn't say.
    pub uuid: Option<String>,
    /// Whether it may be given to anybody.
    pub usable: bool,
    /// Why not.
    pub reasons: Vec<String>,
    /// Minor number of `/dev/nvidiaN`, of a slice that of its GPU.
    pub minor: Option<u32>,
    /// Processes on it, as the driver numbers them: in the initial PID namespace.
    pub processes: Vec<u32>,
}

/// Tells of looks at the GPUs.
#[derive(Debug)]
pub struct Looked(watch::Receiver<Option<Seen>>);

impl Looked {
    /// Waits for the next look; `false` when there will be none.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

/// What the last look brought.
#[derive(Clone, Debug)]
struct Seen {
    /// When it ended.
    at: Instant,
    /// The GPUs of the last look that succeeded.
    inventory: Option<Arc<Inventory>>,
    /// When that was.
    inventory_at: Instant,
    /// Why this one failed.
    error: Option<String>,
}

impl Gpus {
    /// Looks now and again (`discovery.interval`), keeps snapshots, and listens for errors.
    pub fn start(
        settings: watch::Receiver<Arc<Settings>>,
        run_dir: &RunDir,
        state_dir: &StateDir,
    ) -> Self {
        let program = programs::find("creel-discovery", "CREEL_DISCOVERY");
        Self::by(program, settings, Keeper::new(run_dir, state_dir))
    }

    fn by(program: PathBuf, settings: watch::Receiver<Arc<Settings>>, keeper: Keeper) -> Self {
        let gpus = Self {
            shared: Arc::new(Shared {
                settings,
                program: program.clone(),
                discovery: tokio::sync::Mutex::new(Discovery::new(program)),
                seen: watch::Sender::new(None),
                faults: Mutex::default(),
                losses: Losses::default(),
                kept: keeper.kept(),
                keeper: tokio::sync::Mutex::new(keeper),
            }),
        };
        tokio::spawn(gpus.clone().look_again_and_again());
        tokio::spawn(events::listen(gpus.clone()));
        gpus
    }

    /// The GPUs as they were seen last, without waiting for the driver.
    pub async fn known(&self) -> Result<Vec<api::Gpu>, Error> {
        let mut seen = self.shared.seen.subscribe();
        let first = tokio::time::timeout(FIRST_LOOK, seen.wait_for(Option::is_some)).await;
        match first {
            Ok(Ok(seen)) => self.view(seen.as_ref()),
            _ => Err(Error::Refused("the first look at the GPUs has not ended yet".to_owned())),
        }
    }

    /// The GPUs as they are, or where the driver takes longer than 10 s, as they were seen
    /// last.
    pub async fn fresh(&self) -> Result<Vec<api::Gpu>, Error> {
        match tokio::time::timeout(PATIENCE, self.look_and_view(FRESH)).await {
            Ok(gpus) => gpus,
            Err(_) => self.known().await,
        }
    }

    async fn look_and_view(&self, age: Duration) -> Result<Vec<api::Gpu>, Error> {
        let gpus = self.clone();
        // It goes on when who asked has gone.
        let look = tokio::spawn(async move { gpus.look(age).await });
        look.await.map_err(|error| Error::Failed(error.to_string()))?;
        self.view(self.shared.seen.borrow().as_ref())
    }

    /// What else uses the GPU or slice of that UUID, by a look that is not older than a second, or
    /// where the driver takes longer than another, by the last one that succeeded.
    pub async fn surroundings(&self, uuid: &str) -> Surroundings {
        // What it fails with, `error` says.
        let _ = tokio::time::timeout(AT_A_START, self.look_and_view(FRESH)).await;
        let seen = self.shared.seen.borrow();
        let inventory = seen.as_ref().and_then(|seen| seen.inventory.as_deref());
        inventory.map_or_else(Surroundings::default, |inventory| {
            Surroundings::of(uuid, inventory, &Proc::default())
        })
    }

    /// What can be given to users, as it was seen last, without waiting for the driver.
    pub async fn units(&self) -> Result<Vec<Unit>, Error> {
        let gpus = self.known().await?;
        Ok(self.units_of(&gpus))
    }

    /// What can be given to users, by a look that began not longer ago than `age`. Waits for the
    /// driver for `discovery.deadline` at the most.
    pub async fn units_since(&self, age: Duration) -> Result<Vec<Unit>, Error> {
        let gpus = self.look_and_view(age).await?;
        Ok(self.units_of(&gpus))
    }

    fn units_of(&self, gpus: &[api::Gpu]) -> Vec<Unit> {
        let seen = self.shared.seen.borrow();
        let inventory = seen.as_ref().and_then(|seen| seen.inventory.as_deref());
        inventory.map_or_else(Vec::new, |inventory| view::units(inventory, gpus))
    }

    /// What executors lost of them.
    pub fn losses(&self) -> &Losses {
        &self.shared.losses
    }

    /// Tells of every look from now on.
    pub fn looked(&self) -> Looked {
        Looked(self.shared.seen.subscribe())
    }

    /// Why the last look failed, if it did.
    pub fn error(&self) -> Option<String> {
        self.shared.seen.borrow().as_ref().and_then(|seen| seen.error.clone())
    }

    /// What YARN is shown of the GPUs (`creel_discovery::snapshot`); absent before the first look
    /// ever.
    pub fn shown(&self) -> Option<Arc<Snapshot>> {
        self.shared.kept.borrow().snapshot.clone()
    }

    /// Why the snapshot can't be written, if so.
    pub fn snapshot_error(&self) -> Option<String> {
        self.shared.kept.borrow().error.clone()
    }

    /// Says which containers hold GPUs: all of them. They see them, and a MIG layout that would
    /// take one away waits. It is in the snapshot when this returns, if it can be written.
    pub async fn set_holders(&self, holders: Vec<Holder>) {
        self.shared.keeper.lock().await.set_holders(holders).await;
    }

    fn view(&self, seen: Option<&Seen>) -> Result<Vec<api::Gpu>, Error> {
        let Some(seen) = seen else {
            return Err(Error::Refused("nobody has looked at the GPUs yet".to_owned()));
        };
        let Some(inventory) = &seen.inventory else {
            return Err(Error::Failed(seen.error.clone().unwrap_or_default()));
        };
        let stale = seen.error.as_ref().map(|error| {
            let age = seen.inventory_at.elapsed().as_secs();
            format!("as it was seen {age} s ago, since then: {error}")
        });
        let faults = self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let losses = &self.shared.losses;
        let known = view::Known { faults: &faults, losses, stale: stale.as_deref() };
        let mut gpus = view::gpus(inventory, &known);
        for waiting in &self.shared.kept.borrow().waiting {
            let is_it = |name: &Option<String>| name.as_ref() == Some(&waiting.gpu);
            let gpu = gpus.iter_mut().find(|gpu| is_it(&gpu.uuid) || is_it(&gpu.pci_bus_id));
            if let Some(gpu) = gpu {
                gpu.mig.waiting = Some(waiting.to_string());
            }
        }
        Ok(gpus)
    }

    async fn look_again_and_again(self) {
        let mut settings = self.shared.settings.clone();
        loop {
            self.look(Duration::ZERO).await;
            let interval = settings.borrow_and_update().discovery_interval.max(FRESH);
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                changed = settings.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Looks at the GPUs, unless the last look is not older than `age`.
    async fn look(&self, age: Duration) {
        let mut discovery = self.shared.discovery.lock().await;
        let before = self.shared.seen.borrow().clone();
        if before.as_ref().is_some_and(|seen| seen.at.elapsed() < age) {
            return;
        }
        let deadline = self.shared.settings.borrow().discovery_deadline;
        let found = discovery.look(deadline).await;
        let at = Instant::now();
        let seen = match found {
            Ok(inventory) => {
                Seen { at, inventory: Some(Arc::new(inventory)), inventory_at: at, error: None }
            }
            Err(error) => Seen {
                at,
                inventory: before.as_ref().and_then(|seen| seen.inventory.clone()),
                inventory_at: before.as_ref().map_or(at, |seen| seen.inventory_at),
                error: Some(error.to_string()),
            },
        };
        log_change(before.as_ref(), &seen);
        let new = seen.inventory.clone().filter(|_| seen.error.is_none());
        self.shared.seen.send_replace(Some(seen));
        if let Some(inventory) = new {
            self.keep(&inventory).await;
        }
    }

    /// Shows YARN what a look has brought.
    async fn keep(&self, inventory: &Inventory) {
        let mut inventory = inventory.clone();
        {
            let faults = self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner);
            for gpu in &mut inventory.gpus {
                // Not what executors lost: a user's queries may be to blame, and whoever submits
                // queries must not be able to take a node from YARN.
                gpu.health = view::by_driver(gpu, &faults);
                // They are nobody's business.
                gpu.processes = None;
            }
        }
        let settings = Arc::clone(&self.shared.settings.borrow());
        self.shared.keeper.lock().await.look(inventory, &settings).await;
    }
}

/// Says what a look brought, if the one before brought something else.
fn log_change(before: Option<&Seen>, now: &Seen) {
    let count = |seen: &Seen| seen.inventory.as_ref().map(|inventory| inventory.gpus.len());
    if let Some(error) = &now.error {
        if before.is_none_or(|before| before.error.as_ref() != Some(error)) {
            warn!("the GPUs can't be seen: {error}");
        }
    } else if before.is_none_or(|before| before.error.is_some() || count(before) != count(now)) {
        info!("GPUs: {}", count(now).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::discovery::tests::script;
    use super::*;
    use crate::yarn::provider::health;

    const NODE: &str = r#"echo '{"schema":1,"driver":{"library":"x","version":"580.1","cuda":"13.0","nvml":null,"problems":[]},"gpus":[GPU]}'"#;

    fn node() -> String {
        let gpu = creel_discovery::Gpu { uuid: Some("GPU-1".to_owned()), ..Default::default() };
        NODE.replace("GPU]", &format!("{}]", serde_json::to_string(&gpu).unwrap()))
    }

    /// With the run and the state directory in the one of the program.
    fn gpus(program: PathBuf) -> Gpus {
        let mut settings = Settings::default();
        settings.set("discovery.deadline", "1s").unwrap();
        let directory = program.parent().unwrap();
        let run_dir = RunDir::resolve(Some(directory.join("run"))).unwrap();
        let state_dir = StateDir::resolve(&directory.join("state")).unwrap();
        let keeper = Keeper::new(&run_dir, &state_dir);
        Gpus::by(program, watch::channel(Arc::new(settings)).1, keeper)
    }

    /// The snapshot of a directory beside the program.
    fn snapshot(program: &Path, directory: &str) -> Option<Snapshot> {
        let path = program.with_file_name(directory);
        creel_discovery::snapshot::Place { path, named: true }.read().unwrap()
    }

    fn make_directories(program: &Path) {
        for name in ["run", "state"] {
            std::fs::create_dir(program.with_file_name(name)).unwrap();
        }
    }

    #[tokio::test]
    async fn every_look_is_kept_and_goes_on_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), &node().replace("\\n", "\n"));
        make_directories(&program);
        let holder =
            Holder { container: "c1".to_owned(), uid: 7, devices: vec!["GPU-1".to_owned()] };
        let before = gpus(program.clone());
        // Not by a look of the test's own: another one would come, and be late.
        let mut kept = before.shared.kept.clone();
        kept.wait_for(|kept| kept.snapshot.is_some()).await.unwrap();
        before.set_holders(vec![holder.clone()]).await;
        for directory in ["run", "state"] {
            let snapshot = snapshot(&program, directory).unwrap();
            assert_eq!(snapshot.inventory.gpus[0].uuid.as_deref(), Some("GPU-1"));
            assert_eq!(snapshot.holders, std::slice::from_ref(&holder));
        }

        // The GPU is gone, and with it the run directory's file.
        std::fs::remove_file(program.with_file_name("run/snapshot.json")).unwrap();
        script(dir.path(), r#"echo '{"schema":1,"driver":null,"gpus":[]}'"#);
        let after = gpus(program.clone());
        after.look(Duration::ZERO).await;
        let kept = snapshot(&program, "run").unwrap();
        assert_eq!((kept.inventory.gpus.len(), kept.holders.len()), (1, 1));
        assert_eq!(kept.inventory.gpus[0].health.state, api::HealthState::Unhealthy);
        assert_eq!(after.shown().unwrap().inventory, kept.inventory);
    }

    #[tokio::test]
    async fn a_directory_that_takes_no_file_is_said_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), &node().replace("\\n", "\n"));
        make_directories(&program);
        std::fs::create_dir_all(program.with_file_name("run/snapshot.json/x")).unwrap();
        let gpus = gpus(program.clone());
        gpus.look(Duration::ZERO).await;
        assert!(gpus.snapshot_error().unwrap().contains("run/snapshot.json"));
        assert!(snapshot(&program, "state").unwrap().has_units());
        std::fs::remove_dir_all(program.with_file_name("run/snapshot.json")).unwrap();
        gpus.look(Duration::ZERO).await;
        assert_eq!(gpus.snapshot_error(), None);
        assert!(snapshot(&program, "run").unwrap().has_units());
    }

    #[tokio::test]
    async fn a_new_layout_that_waits_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), &node().replace("\\n", "\n"));
        make_directories(&program);
        let gpus = gpus(program.clone());
        gpus.look(Duration::ZERO).await;
        let holder = Holder { container: "c1".into(), uid: 7, devices: vec!["GPU-1".into()] };
        gpus.set_holders(vec![holder]).await;
        script(
            dir.path(),
            &node().replace("\\n", "\n").replace(r#""enabled":null"#, r#""enabled":true"#),
        );
        gpus.look(Duration::ZERO).await;
        let waiting = gpus.known().await.unwrap()[0].mig.waiting.clone();
        assert!(waiting.unwrap().contains("until c1 ends"));
        assert_eq!(gpus.shown().unwrap().inventory.gpus[0].mig.enabled, None);
    }

    #[tokio::test]
    async fn what_was_known_stays_known_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(
            dir.path(),
            &format!("case $1 in --watch) exit 0;; esac\n{}", node()).replace("\\n", "\n"),
        );
        let gpus = gpus(program);
        let known = gpus.known().await.unwrap();
        assert_eq!((known.len(), known[0].driver.as_deref()), (1, Some("580.1")));
        assert_eq!(known[0].health.state, api::HealthState::Healthy);

        script(dir.path(), "echo 'GPU is lost' >&2; exit 1");
        gpus.look(Duration::ZERO).await;
        let known = gpus.known().await.unwrap();
        assert_eq!(known[0].health.state, api::HealthState::Unhealthy);
        assert!(known[0].health.reasons[0].contains("GPU is lost"), "{known:?}");
        assert_eq!(gpus.error().as_deref(), Some("GPU is lost"));
    }

    #[tokio::test]
    async fn what_executors_lost_again_and_again_is_unfit_for_everybody_but_yarn() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), &node().replace("\\n", "\n"));
        make_directories(&program);
        let gpus = gpus(program);
        gpus.look(Duration::ZERO).await;
        assert!(gpus.units().await.unwrap()[0].usable);
        for _ in 0..3 {
            gpus.shared.losses.note("GPU-1", "CUDA_ERROR_LAUNCH_FAILED");
        }
        let unit = &gpus.units().await.unwrap()[0];
        assert!(!unit.usable && unit.reasons[0].contains("CUDA_ERROR_LAUNCH_FAILED"), "{unit:?}");
        gpus.look(Duration::ZERO).await;
        let shown = gpus.shown().unwrap();
        assert_eq!(shown.inventory.gpus[0].health, api::Health::default());
        assert_eq!(health::check(Some(&shown)), health::Report::default());
    }

    #[tokio::test]
    async fn a_fatal_error_of_the_driver_reaches_yarn() {
        let dir = tempfile::tempdir().unwrap();
        let event = r#"{"uuid":"GPU-1","pci_bus_id":null,"xid":79,"time":1}"#;
        let watch = format!("case $1 in --watch) echo '{event}'; exec sleep 600;; esac");
        let program = script(dir.path(), &format!("{watch}\n{}", node()).replace("\\n", "\n"));
        make_directories(&program);
        let gpus = gpus(program);
        gpus.look(Duration::ZERO).await;
        while gpus.units().await.unwrap()[0].usable {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        gpus.look(Duration::ZERO).await;
        let report = health::check(gpus.shown().as_deref());
        assert!(
            report.stdout.starts_with(b"ERROR no GPU of this node is fit for use"),
            "{report:?}"
        );
    }

    #[tokio::test]
    async fn an_executor_that_starts_is_told_what_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let program = script(dir.path(), &node().replace("\\n", "\n"));
        make_directories(&program);
        let gpus = gpus(program);
        assert_eq!(gpus.surroundings("GPU-1").await, Surroundings { gpus: 1, holders: vec![] });
        let pid = std::process::id();
        let process = format!(
            r#"{{"pid":{pid},"kind":"compute","memory":7,"gpu_instance":null,"compute_instance":null}}"#
        );
        let busy = node().replace(r#""processes":null"#, &format!(r#""processes":[{process}]"#));
        script(dir.path(), &busy);
        tokio::time::sleep(FRESH).await;
        let holders = gpus.surroundings("GPU-1").await.holders;
        assert_eq!(holders.len(), 1);
        assert_eq!((holders[0].pid, holders[0].bytes), (pid, Some(7)));

        script(dir.path(), "sleep 600");
        tokio::time::sleep(FRESH).await;
        assert_eq!(gpus.surroundings("GPU-1").await.holders, holders, "as it was seen last");
    }

    #[tokio::test]
    async fn without_any_answer_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = gpus(script(dir.path(), "echo broken >&2; exit 1"));
        assert_eq!(gpus.fresh().await.unwrap_err().to_string(), "broken");
        assert_eq!(gpus.known().await.unwrap_err().to_string(), "broken");
    }
}
