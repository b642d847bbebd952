//! Keeping the snapshot that `nvidia-smi` for YARN answers from.
//!
//! One in the run directory, written at every look, and a copy in the state directory, written when
//! it would say something else. A directory that takes none, or that hangs, is said in the log and
//! in `creel status`, and stands in nobody's way.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use creel_discovery::snapshot::{self, Holder, MigMinor, Place, Snapshot};
use creel_discovery::{Error, Inventory};
use creel_settings::{KeepLostGpus, Settings};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::layout::{self, Shown, Waiting};
use crate::clock;
use crate::run_dir::RunDir;
use crate::state_dir::StateDir;
use crate::yarn::{conf_dir, executor};

/// What writing may take; longer, and the disk hangs.
const PATIENCE: Duration = Duration::from_secs(2);
/// After so many looks that did not come, what changes all the time is old.
const LOOKS: u32 = 3;

/// What YARN is shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// The snapshot; absent: nobody has looked at the GPUs yet, nor before.
    pub(super) snapshot: Option<Arc<Snapshot>>,
    /// The GPUs whose new layout waits.
    pub(super) waiting: Vec<Waiting>,
    /// Why the snapshot could not be written, if so.
    pub(super) error: Option<String>,
}

/// Writes snapshots.
#[derive(Debug)]
pub(super) struct Keeper {
    run_dir: PathBuf,
    state_dir: PathBuf,
    kept: watch::Sender<Kept>,
    holders: Vec<Holder>,
    /// What the copy in the state directory says.
    copied: Option<Snapshot>,
    /// A write that is not done yet.
    writing: Option<JoinHandle<Result<Option<Snapshot>, Error>>>,
}

impl Keeper {
    /// Goes on from what is there.
    pub(super) fn new(run_dir: &RunDir, state_dir: &StateDir) -> Self {
        let [run_dir, state_dir] = [run_dir.path(), state_dir.path()].map(PathBuf::from);
        let places = [&run_dir, &state_dir].map(|path| Place { path: path.clone(), named: true });
        let snapshot = snapshot::best(&places, clock::now(), |error| {
            warn!("an old snapshot of the GPUs is not used: {error}");
        });
        let holders = snapshot.as_ref().map_or_else(Vec::new, |snapshot| snapshot.holders.clone());
        let kept = Kept { snapshot: snapshot.map(Arc::new), ..Kept::default() };
        let kept = watch::Sender::new(kept);
        Self { run_dir, state_dir, kept, holders, copied: None, writing: None }
    }

    /// What YARN is shown, now and later.
    pub(super) fn kept(&self) -> watch::Receiver<Kept> {
        self.kept.subscribe()
    }

    /// After a look at the GPUs: shows what it brought.
    pub(super) async fn look(&mut self, inventory: Inventory, settings: &Settings) {
        let Kept { snapshot: before, waiting: waited, .. } = self.kept.borrow().clone();
        let keep_places = match settings.yarn_keep_lost_gpus {
            KeepLostGpus::Yes => true,
            KeepLostGpus::No => false,
            KeepLostGpus::Auto => {
                let known = before.as_ref().is_some_and(|before| before.keep_places);
                let settings = settings.clone();
                let find = move || conf_dir::find_at_once(&settings).ok().map(|found| found.path);
                executor::knows_gpus_by_place(find).await.unwrap_or(known)
            }
        };
        let boot_id = snapshot::boot_id();
        let before = before.as_deref();
        let Shown { inventory, waiting } =
            layout::next(before, inventory, &self.holders, keep_places, boot_id.as_deref());
        for each in waiting.iter().filter(|each| !waited.contains(each)) {
            warn!(gpu = each.gpu, "{each}");
        }
        let before = before.map(|before| &before.inventory);
        if waiting.is_empty() && before.is_some_and(|before| units(before) != units(&inventory)) {
            info!("YARN is shown other GPUs from now on: {}", units(&inventory).join(", "));
        }
        let current = settings.discovery_interval * LOOKS + settings.discovery_deadline;
        let snapshot = Snapshot {
            current_for: current.as_secs(),
            boot_id,
            keep_places,
            mig_minor: match settings.yarn_mig_minor {
                creel_settings::MigMinor::Gpu => MigMinor::Gpu,
                creel_settings::MigMinor::Capability => MigMinor::Capability,
            },
            holders: self.holders.clone(),
            ..Snapshot::new(inventory, clock::now())
        };
        self.kept.send_modify(|kept| {
            kept.snapshot = Some(Arc::new(snapshot));
            kept.waiting = waiting;
        });
        self.write().await;
    }

    /// The containers that hold GPUs: all of them.
    pub(super) async fn set_holders(&mut self, holders: Vec<Holder>) {
        if self.holders == holders {
            return;
        }
        self.holders.clone_from(&holders);
        self.kept.send_modify(|kept| {
            if let Some(snapshot) = &mut kept.snapshot {
                Arc::make_mut(snapshot).holders = holders;
            }
        });
        self.write().await;
    }

    async fn write(&mut self) {
        let error = self.try_write().await.err();
        let before = self.kept.borrow().error.clone();
        match &error {
            Some(error) if before.as_ref() != Some(error) => {
                warn!("nvidia-smi for YARN answers from an old snapshot: {error}");
            }
            None if before.is_some() => info!("the snapshot for nvidia-smi is written again"),
            _ => {}
        }
        self.kept.send_modify(|kept| kept.error = error);
    }

    async fn try_write(&mut self) -> Result<(), String> {
        let hangs = || format!("a write in {} hangs", self.run_dir.display());
        let mut writing = match self.writing.take() {
            Some(writing) if !writing.is_finished() => {
                self.writing = Some(writing);
                return Err(hangs());
            }
            _ => {
                let Some(shown) = self.kept.borrow().snapshot.clone() else { return Ok(()) };
                let (run_dir, state_dir) = (self.run_dir.clone(), self.state_dir.clone());
                let copied = self.copied.take();
                tokio::task::spawn_blocking(move || {
                    let in_run_dir = shown.write(&run_dir);
                    let copy = Snapshot { taken_at: 0, ..(*shown).clone().lasting() };
                    if in_run_dir.is_ok() && copied.as_ref() == Some(&copy) {
                        return Ok(copied);
                    }
                    shown.write(&state_dir)?;
                    in_run_dir.map(|()| Some(copy))
                })
            }
        };
        match tokio::time::timeout(PATIENCE, &mut writing).await {
            Ok(Ok(Ok(copied))) => {
                self.copied = copied;
                Ok(())
            }
            Ok(Ok(Err(error))) => Err(error.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => {
                self.writing = Some(writing);
                Err(hangs())
            }
        }
    }
}

fn units(inventory: &Inventory) -> Vec<&str> {
    inventory.units().filter(creel_discovery::Unit::usable).filter_map(|unit| unit.uuid()).collect()
}
