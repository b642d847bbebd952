//! Keeping YARN's files as GPUs need them, with the setting `yarn.manage`.
//!
//! ```text
//!   start, settings ─┐
//!   GPUs changed ────┤              plan ──▶ nothing to do
//!   files changed ───┼──▶ look ──▶    └────▶ apply ──▶ which daemon is due? ──▶ log,
//!   every minute ────┘                                                         systemctl restart
//! ```
//!
//! Cluster managers write the same files. When one takes entries out that were applied, they are
//! put back; each time it does so again within the hour, that waits twice as long (`Contest`), so
//! that two managers don't fight without end, and each time it is said in the log.
//!
//! - `bring`: one look at the files.
//! - `changes`: when the next is due.
//! - `contest`: how long to wait for others.
//! - `nodemanager`: restarting it.

mod bring;
mod changes;
mod contest;
mod nodemanager;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use creel_settings::Settings;
use creel_yarn::restart::Due;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use self::bring::Brought;
use self::changes::Changes;
use self::contest::Contest;
use crate::gpus::Gpus;

/// A look at the files that nothing asked for.
const INTERVAL: Duration = Duration::from_mins(1);

/// What the last look found.
#[derive(Debug, Default)]
struct State {
    /// The configuration directory; absent where none is found, or nothing is managed.
    conf_dir: Option<PathBuf>,
    /// Why the files are not as they have to be; absent where they are.
    error: Option<String>,
    /// The daemons of this node that don't know yet what was written.
    due: Vec<Due>,
}

/// Keeps the files, as long as the settings say so. What is due is in the log, and in
/// [`creel_yarn::restart::due`] for whoever asks.
pub fn start(settings: watch::Receiver<Arc<Settings>>, gpus: &Gpus) {
    let changes = Changes::new(settings.clone(), gpus.clone());
    let (state, contest) = (State::default(), Contest::default());
    tokio::spawn(Manager { settings, changes, state, contest, restarted: None }.run());
}

struct Manager {
    settings: watch::Receiver<Arc<Settings>>,
    changes: Changes,
    state: State,
    contest: Contest,
    /// The NodeManager that was restarted last: its process, as it was before.
    restarted: Option<u32>,
}

impl Manager {
    async fn run(mut self) {
        loop {
            let settings = Arc::clone(&self.settings.borrow_and_update());
            let again = if settings.yarn_manage {
                self.look(&settings).await
            } else {
                self.state = State::default();
                None
            };
            if !self.changes.next(self.state.conf_dir.as_deref(), again).await {
                return;
            }
        }
    }

    /// Looks at the files and brings them to what is needed. Gives when to look again.
    async fn look(&mut self, settings: &Arc<Settings>) -> Option<Instant> {
        let may_write = self.contest.may_write(Instant::now());
        let brought = {
            let settings = Arc::clone(settings);
            tokio::task::spawn_blocking(move || bring::bring(&settings, may_write)).await
        };
        let mut state = State::default();
        match brought {
            Ok(Ok(brought)) => {
                self.tell(&brought);
                state.conf_dir = Some(brought.conf_dir);
                state.error = brought.put_off.then(|| {
                    "another program took entries out, and it is waited before they are put back"
                        .to_owned()
                });
                state.due = brought.due;
            }
            Ok(Err(error)) => state.error = Some(error.to_string()),
            Err(error) => state.error = Some(format!("the look at the files failed: {error}")),
        }
        self.tell_difference(&state);
        self.state = state;
        if settings.yarn_restart_nodemanager {
            self.restart(settings).await;
        }
        let contest = self.contest.until().filter(|_| !may_write);
        Some(contest.unwrap_or_else(|| Instant::now() + INTERVAL))
    }

    /// Says what was written, and takes note of who took it out before.
    fn tell(&mut self, brought: &Brought) {
        if brought.written.is_empty() {
            return;
        }
        for path in &brought.written {
            info!("{}: brought to what GPUs need", path.display());
        }
        if brought.again {
            let wait = self.contest.lost(Instant::now());
            warn!(
                "another program takes entries of Creel out of {}; they are put back, and if it \
                 does so again, not before {wait:?}: let that program write them, or set \
                 yarn.manage = false",
                brought.conf_dir.display()
            );
        }
    }

    /// Says what has changed since the last look.
    fn tell_difference(&self, now: &State) {
        let before = &self.state;
        if let Some(error) = now.error.as_ref().filter(|error| before.error.as_ref() != Some(error))
        {
            warn!("YARN's files are not as GPUs need them: {error}");
        }
        for due in now.due.iter().filter(|due| !before.due.contains(due)) {
            warn!(
                "the {} (pid {}) has to be restarted: it does not know {} yet",
                due.running.daemon.name(),
                due.running.pid,
                due.keys.join(", ")
            );
        }
    }

    /// Restarts the NodeManager if it is due, once for each of its lives.
    async fn restart(&mut self, settings: &Settings) {
        let Some(pid) = nodemanager::due(&self.state.due) else { return };
        if self.restarted.replace(pid) == Some(pid) {
            return;
        }
        match nodemanager::restart(&settings.yarn_nodemanager_unit, pid).await {
            Ok(unit) => info!("{unit} is restarted: it has to know the GPUs"),
            Err(error) => warn!("the NodeManager could not be restarted: {error}"),
        }
    }
}
