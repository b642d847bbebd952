//! The node's GPUs: what they are, and whether they are fit for use.
//!
//! Both come from `creel-discovery`, a process of its own: its call into the driver may hang.
//!
//! - `discovery`: one look at the GPUs.
//! - `events`: errors that the driver reports as they happen.
//! - `view`: what the control API shows of it.

mod discovery;
mod events;
mod view;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use creel_discovery::Inventory;
use creel_settings::Settings;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use self::discovery::Discovery;
use self::events::Faults;
use crate::error::Error;
use crate::{api, programs};

/// A look at the GPUs that is not older needs no new one.
const FRESH: Duration = Duration::from_secs(1);
/// How long a question waits for the first look ever.
const FIRST_LOOK: Duration = Duration::from_secs(1);

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
}

/// Something that can be given to one user alone: a whole GPU or a MIG slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Place among the node's units, from 0: its address for Spark.
    pub address: u32,
    /// `GPU-…` or `MIG-…`; absent where the driver doesn't say.
    pub uuid: Option<String>,
    /// Whether it may be given to anybody.
    pub usable: bool,
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
    /// Looks now and again (`discovery.interval`), and listens for errors.
    pub fn start(settings: watch::Receiver<Arc<Settings>>) -> Self {
        Self::by(programs::find("creel-discovery", "CREEL_DISCOVERY"), settings)
    }

    fn by(program: PathBuf, settings: watch::Receiver<Arc<Settings>>) -> Self {
        let gpus = Self {
            shared: Arc::new(Shared {
                settings,
                program: program.clone(),
                discovery: tokio::sync::Mutex::new(Discovery::new(program)),
                seen: watch::Sender::new(None),
                faults: Mutex::default(),
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

    /// The GPUs as they are; waits for the driver for `discovery.deadline` at the most.
    pub async fn fresh(&self) -> Result<Vec<api::Gpu>, Error> {
        let gpus = self.clone();
        // It goes on when who asked has gone.
        let look = tokio::spawn(async move { gpus.look(FRESH).await });
        look.await.map_err(|error| Error::Failed(error.to_string()))?;
        self.view(self.shared.seen.borrow().as_ref())
    }

    /// What can be given to users, as it was seen last, without waiting for the driver.
    pub async fn units(&self) -> Result<Vec<Unit>, Error> {
        let usable: Vec<bool> = self
            .known()
            .await?
            .iter()
            .map(|gpu| gpu.health.state == api::HealthState::Healthy)
            .collect();
        let seen = self.shared.seen.borrow();
        let inventory = seen.as_ref().and_then(|seen| seen.inventory.as_deref());
        let units = inventory.into_iter().flat_map(Inventory::units);
        Ok(units
            .map(|unit| Unit {
                address: unit.address,
                uuid: unit.uuid().map(str::to_owned),
                usable: usable.get(unit.gpu.index as usize).is_some_and(|usable| *usable),
            })
            .collect())
    }

    /// Tells of every look from now on.
    pub fn looked(&self) -> Looked {
        Looked(self.shared.seen.subscribe())
    }

    /// Why the last look failed, if it did.
    pub fn error(&self) -> Option<String> {
        self.shared.seen.borrow().as_ref().and_then(|seen| seen.error.clone())
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
        Ok(view::gpus(inventory, &faults, stale.as_deref()))
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
        self.shared.seen.send_replace(Some(seen));
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
    use super::discovery::tests::script;
    use super::*;

    const NODE: &str = r#"echo '{"schema":1,"driver":{"library":"x","version":"580.1","cuda":"13.0","nvml":null,"problems":[]},"gpus":[GPU]}'"#;

    fn node() -> String {
        let gpu = creel_discovery::Gpu { uuid: Some("GPU-1".to_owned()), ..Default::default() };
        NODE.replace("GPU]", &format!("{}]", serde_json::to_string(&gpu).unwrap()))
    }

    fn gpus(program: PathBuf) -> Gpus {
        let mut settings = Settings::default();
        settings.set("discovery.deadline", "1s").unwrap();
        Gpus::by(program, watch::channel(Arc::new(settings)).1)
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
    async fn without_any_answer_there_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = gpus(script(dir.path(), "echo broken >&2; exit 1"));
        assert_eq!(gpus.fresh().await.unwrap_err().to_string(), "broken");
        assert_eq!(gpus.known().await.unwrap_err().to_string(), "broken");
    }
}
