//! Leases: who holds which GPU or slice.
//!
//! ```text
//!   a container asks (getGpusResources.sh) ─▶ control ─▶ ask
//!                                                         │ who:      holder   (peer: the kernel)
//!                                                         │ how many: count    (YARN, job, 1)
//!                                                         │ when:     waiting  (in turn)
//!                                                         │ which:    assign   (lowest free)
//!                                                         ▼
//!   restart ─▶ recovery ─▶ [ leases ] ─▶ journal ─▶ store, audit log
//!                              ▲
//!   last process gone ─▶ end ──┘
//! ```
//!
//! Plain YARN counts GPUs and assigns none; a lease is the assignment. A container or a process
//! holds at most one lease, and a device is in at most one. The same holder gets the same answer,
//! however often it asks.
//!
//! - [`lease`]: what a lease is. [`holder`]: who has it, and whether that lives.
//! - `count`, `waiting`, `assign`: how many, when, which. `yarn`: what YARN says of a container;
//!   `isolation`: what its control group does.
//! - `end`: when a lease ends.
//! - `journal`: what is on the disk, by `store` and `audit`; `recovery`: what an agent that starts
//!   makes of it.

mod assign;
mod audit;
mod count;
mod end;
pub mod holder;
mod isolation;
mod journal;
pub mod lease;
mod recovery;
mod store;
mod waiting;
mod yarn;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use creel_settings::Settings;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use self::assign::{Board, Device, Taken, Want};
use self::audit::Audit;
use self::count::Known;
use self::holder::Holder;
use self::journal::Journal;
use self::lease::Held;
pub use self::lease::{Lease, Source};
use self::recovery::Doubt;
use self::store::Content;
use self::waiting::Queue;
use self::yarn::Yarn;
use crate::error::Error;
use crate::gpus::{Gpus, Unit};
use crate::peer::{Awaited, Container, Ends, Peer, Proc};
use crate::{api, clock};

/// The variable by which `creel run` names its lease to what it starts.
pub const LEASE_VARIABLE: &str = "CREEL_LEASE";

/// How long one request may wait.
pub const MAX_WAIT: Duration = Duration::from_mins(4);

/// A look at the GPUs before a grant is not older than this.
const LOOK: Duration = Duration::from_secs(1);
/// Where a process without a lease is on a GPU, the next look is to see it go.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The node's leases; clones share them.
#[derive(Clone, Debug)]
pub struct Leases {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    gpus: Gpus,
    yarn: Yarn,
    proc: Proc,
    boot: String,
    ends: Ends,
    /// Whether the driver's process numbers are this agent's.
    is_initial_namespace: bool,
    journal: Journal,
    state: Mutex<State>,
    changes: watch::Sender<u64>,
    /// One at a time says who holds what, so that the last word is the newest.
    publishing: tokio::sync::Mutex<()>,
    /// Numbers of leases one of whose processes has ended.
    ended: mpsc::UnboundedSender<u64>,
}

#[derive(Debug, Default)]
struct State {
    leases: BTreeMap<u64, Granted>,
    queue: Queue,
    next: u64,
    doubt: Option<Doubt>,
}

impl State {
    fn of(content: &Content) -> Self {
        let granted = |lease: Lease| Granted { lease, is_written: true, awaited: Vec::new() };
        let leases = content.leases.iter().cloned();
        Self {
            leases: leases.map(|lease| (lease.number, granted(lease))).collect(),
            next: content.next,
            doubt: content.doubt.clone(),
            ..Self::default()
        }
    }
}

#[derive(Debug)]
struct Granted {
    lease: Lease,
    /// Whether it is on the disk: before that, nobody is told of it.
    is_written: bool,
    /// The wait for the end of its processes.
    awaited: Vec<Awaited>,
}

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// How many, if the peer says.
    pub gpus: Option<u32>,
    /// How long to wait where the node is full.
    pub wait: Duration,
    /// Whether only the lease of a container will do.
    pub in_container: bool,
    /// What the peer knows of itself.
    pub hints: api::Hints,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The peer is in no container.
    NoContainer,
    /// The peer can't be told, or is not what it claims to be.
    Identity(String),
    /// What is asked for is more than is due.
    TooMany(String),
    /// Who holds what, after the wait.
    Full(String),
    /// Leases can't be given at all now.
    Unable(String),
}

/// A request under way.
struct Asking<'a> {
    peer: &'a Peer,
    /// Who would hold the lease.
    holder: Holder,
    want: Want,
    source: Source,
    /// Its place in the queue.
    ticket: u64,
    /// What the peer sees.
    visible: Option<&'a [String]>,
}

/// What one look at a request comes to.
enum Outcome {
    /// The lease, which is on the disk.
    Has(Lease),
    /// A lease that is to be written.
    Chosen(Lease),
    /// Not now; whether a process without a lease is in the way.
    Short { why: String, is_in_use: bool },
}

impl Leases {
    /// Takes up the leases of the agent before, from a state directory.
    ///
    /// # Errors
    /// [`Error::System`] where processes can't be watched at all. A store that can't be read is
    /// none: see [`Leases::problem`].
    pub fn start(
        state_dir: &Path,
        gpus: Gpus,
        settings: watch::Receiver<Arc<Settings>>,
    ) -> Result<Self, Error> {
        let failed = |source| Error::System { what: "watch processes", source };
        let proc = Proc::default();
        let audit = Audit::new(state_dir);
        let snapshot = gpus.shown();
        let shown = snapshot.iter().flat_map(|snapshot| &snapshot.holders);
        let shown: Vec<_> = shown.map(|holder| holder.container.as_str()).collect();
        let recovered = recovery::recover(state_dir, &audit, &proc, &shown);
        let (ended, told) = mpsc::unbounded_channel();
        let recovery::Recovered { store, content, gone, problem } = recovered;
        let state = State::of(&content);
        let dir = state_dir.to_owned();
        let journal = Journal::start(dir, store, audit, content, problem).map_err(failed)?;
        for lease in gone {
            journal.end(lease, "its holder was gone when the agent started".to_owned());
        }
        if !state.leases.is_empty() {
            info!("{} leases of the agent before are held on", state.leases.len());
        }
        let shared = Shared {
            gpus,
            yarn: Yarn::new(settings),
            boot: proc.boot_id().map_err(failed)?,
            is_initial_namespace: proc.is_initial_namespace(),
            proc,
            ends: Ends::start().map_err(failed)?,
            journal,
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
            publishing: tokio::sync::Mutex::default(),
            ended,
        };
        let leases = Self { shared: Arc::new(shared) };
        // The first round of it looks at all of them.
        tokio::spawn(end::follow(leases.clone(), told));
        tokio::spawn(leases.clone().publish_changes());
        Ok(leases)
    }

    /// What is wrong with the store of the leases.
    pub fn problem(&self) -> Option<String> {
        let doubt = self.state().doubt.as_ref().map(describe);
        self.shared.journal.problem().or(doubt)
    }

    /// Tells of every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// All leases, by number.
    pub fn all(&self) -> Vec<Lease> {
        let state = self.state();
        state.leases.values().filter(|granted| granted.is_written).map(Granted::lease).collect()
    }

    /// The lease of that number.
    pub fn get(&self, number: u64) -> Option<Lease> {
        let state = self.state();
        state.leases.get(&number).filter(|granted| granted.is_written).map(Granted::lease)
    }

    /// The lease on a device.
    pub fn on(&self, uuid: &str) -> Option<Lease> {
        self.all().into_iter().find(|lease| lease.holds(uuid))
    }

    /// The lease of a peer: of its container, or of the process that it descends from.
    pub fn of(&self, peer: &Peer) -> Option<Lease> {
        self.all().into_iter().find(|lease| is_of(&lease.holder, peer))
    }

    /// Ends a lease at the word of somebody; `false` if there is none of that number.
    pub fn release(&self, number: u64, reason: &str) -> bool {
        self.end(number, reason)
    }

    /// Believes no longer that what was lost may be held; `false` if nothing was in doubt.
    pub fn release_doubt(&self, reason: &str) -> bool {
        let Some(doubt) = self.state().doubt.take() else { return false };
        warn!("{reason}: {} is no longer taken to hold GPUs", describe(&doubt));
        self.shared.journal.doubt(None);
        self.changed();
        true
    }

    /// Gives a peer its lease: the one that it has, or a new one, perhaps after a wait.
    pub async fn ask(&self, peer: &Peer, request: Request) -> Result<Lease, Refusal> {
        let deadline = Instant::now() + request.wait.min(MAX_WAIT);
        let mut changes = self.changes();
        if let Some(lease) = self.of(peer) {
            return enough(lease, &request);
        }
        if let Some(problem) = self.shared.journal.unread() {
            return Err(Refusal::Unable(problem));
        }
        let holder = self.holder_of(peer, &request).await?;
        let (want, source) = match &peer.container {
            Ok(Some(container)) => self.due(container, &request).await?,
            _ => (Want::any(request.gpus.map_or(1, |gpus| gpus as usize)), Source::Request),
        };
        enough_of(want.count, &request)?;
        // Nothing is to be seen for nothing.
        let is_none = want.count == 0;
        let ticket = self.state().queue.enter(want.clone());
        let _turn = Turn { leases: self, ticket };
        // CUDA numbers what a control group lets a process open from 0.
        let open = want.among.clone().filter(|_| source == Source::Cgroup);
        let visible = open.as_deref().or(request.hints.visible.as_deref());
        let asking = Asking { peer, holder, want, source, ticket, visible };
        let mut age = LOOK;
        loop {
            changes.borrow_and_update();
            let units = if is_none { Vec::new() } else { self.units(age).await? };
            match self.consider(&asking, &units) {
                Outcome::Has(lease) => return enough(lease, &request),
                Outcome::Chosen(lease) => {
                    // Whoever asks may go meanwhile.
                    let leases = self.clone();
                    let written = tokio::spawn(async move { leases.grant(lease).await }).await;
                    return written.map_err(|error| Refusal::Unable(error.to_string()))?;
                }
                Outcome::Short { why, is_in_use } => {
                    let now = Instant::now();
                    if now >= deadline {
                        return Err(Refusal::Full(why));
                    }
                    age = if is_in_use { LOOK_AGAIN } else { LOOK };
                    let again = deadline.min(now + age);
                    tokio::select! {
                        _ = changes.changed() => {}
                        () = tokio::time::sleep_until(again) => {}
                    }
                }
            }
        }
    }

    /// Who the holder would be.
    async fn holder_of(&self, peer: &Peer, request: &Request) -> Result<Holder, Refusal> {
        let boot = self.shared.boot.clone();
        match &peer.container {
            Ok(Some(container)) => {
                self.confirm(container, peer.uid).await?;
                Ok(Holder::container(container, peer.uid, boot))
            }
            Err(unclear) => Err(Refusal::Identity(unclear.to_string())),
            Ok(None) if request.in_container => Err(Refusal::NoContainer),
            Ok(None) => match peer.lineage.first() {
                Some(stat) => Ok(Holder::of_process(stat.process, peer.uid, boot)),
                None => Err(Refusal::Identity(format!(
                    "process {} can't be looked at, or has changed its user",
                    peer.pid
                ))),
            },
        }
    }

    /// A NodeManager of the container's own user could be made up, and so could its local
    /// directory: it has to be one of those that YARN's configuration names.
    async fn confirm(&self, container: &Container, uid: u32) -> Result<(), Refusal> {
        let is_to_be_trusted = uid == rustix::process::geteuid().as_raw();
        let Some(local_dir) = &container.local_dir else { return Ok(()) };
        if is_to_be_trusted || container.manager != Some(uid) {
            return Ok(());
        }
        match self.shared.yarn.has_local_dir(local_dir).await {
            Some(false) => Err(Refusal::Identity(format!(
                "{} is confirmed by a pid file in {}, which is none of \
                 yarn.nodemanager.local-dirs",
                container.id,
                local_dir.display()
            ))),
            _ => Ok(()),
        }
    }

    /// What a container is due.
    async fn due(
        &self,
        container: &Container,
        request: &Request,
    ) -> Result<(Want, Source), Refusal> {
        let (yarn, units) =
            tokio::join!(self.shared.yarn.allotment(&container.id), self.units(LOOK));
        // Where the GPUs are not known, a container that is due none needs none.
        let units = match units {
            Err(refusal) if yarn.count != Some(0) => return Err(refusal),
            units => units.unwrap_or_default(),
        };
        let denied = match &container.devices_group {
            Some(group) => {
                let mut minors: Vec<_> = units.iter().filter_map(|unit| unit.minor).collect();
                minors.dedup();
                isolation::denied(group, &minors).await.unwrap_or_default()
            }
            None => Vec::new(),
        };
        let (hints, asked) = (&request.hints, request.gpus);
        Ok(count::due(&units, &Known { yarn: &yarn, denied: &denied, hints, asked }))
    }

    async fn units(&self, age: Duration) -> Result<Vec<Unit>, Refusal> {
        let units = self.shared.gpus.units_since(age).await;
        units.map_err(|error| Refusal::Unable(format!("the node's GPUs are not known: {error}")))
    }

    /// Looks whether a request can be met now, and chooses the devices.
    fn consider(&self, asking: &Asking<'_>, units: &[Unit]) -> Outcome {
        let Asking { peer, holder, want, source, ticket, visible } = asking;
        let mut state = self.state();
        let theirs = state.leases.values().find(|granted| is_same(&granted.lease.holder, holder));
        if let Some(granted) = theirs {
            let lease = granted.lease();
            let short = |why| Outcome::Short { why, is_in_use: false };
            if !is_of(&lease.holder, peer) {
                // It may have gone, and be started again under the same name.
                let _ = self.shared.ended.send(lease.number);
                return short(format!(
                    "{} is held by other processes under the name of {}",
                    lease.id(),
                    holder.name()
                ));
            }
            return if granted.is_written {
                Outcome::Has(lease)
            } else {
                short("it is being granted".to_owned())
            };
        }
        let taken = |device: Device<'_>| self.taken(&state, device);
        let mut board = Board::new(units, taken);
        state.queue.set_aside(&mut board, *ticket);
        let is_in_use = board.is_in_use();
        let Some(devices) = board.take(want) else {
            return Outcome::Short { why: board.shortage(want), is_in_use };
        };
        let devices = held(&devices, *visible);
        let number = state.next;
        let (holder, since, source) = (holder.clone(), clock::now(), *source);
        let lease = Lease { number, holder, devices, since, source };
        state.next += 1;
        let granted = Granted { lease: lease.clone(), is_written: false, awaited: Vec::new() };
        state.leases.insert(number, granted);
        Outcome::Chosen(lease)
    }

    /// Why a device is not free, but for its health.
    fn taken(&self, state: &State, device: Device<'_>) -> Option<Taken> {
        let leased = state.leases.values().find(|granted| granted.lease.holds(device.uuid));
        if let Some(Granted { lease, .. }) = leased {
            return Some(Taken::Leased(lease.id(), lease.holder.name()));
        }
        let foreign: Vec<u32> =
            device.unit.processes.iter().copied().filter(|pid| self.is_foreign(*pid)).collect();
        if !foreign.is_empty() {
            return Some(Taken::InUse(foreign));
        }
        state.doubt.as_ref().map(|doubt| Taken::InDoubt(describe(doubt)))
    }

    /// Whether a process on a device without a lease is somebody's: not one that has ended since
    /// the driver was asked, nor an executor of this agent, which it ends when somebody is granted
    /// the device.
    fn is_foreign(&self, pid: u32) -> bool {
        let pid = pid.cast_signed();
        match self.shared.proc.stat(pid) {
            Ok(stat) if stat.parent == Some(std::process::id().cast_signed()) => false,
            Ok(stat) => !(stat.ended && self.shared.is_initial_namespace),
            Err(_) => !self.shared.is_initial_namespace,
        }
    }

    /// Writes a lease that was chosen. From then on it is one.
    async fn grant(self, lease: Lease) -> Result<Lease, Refusal> {
        let number = lease.number;
        if let Err(failed) = self.shared.journal.grant(lease.clone()).await {
            self.state().leases.remove(&number);
            self.changed();
            return Err(Refusal::Unable(format!(
                "no lease can be given, as it would be forgotten when the agent starts anew: \
                 {failed}"
            )));
        }
        if let Some(granted) = self.state().leases.get_mut(&number) {
            granted.is_written = true;
        }
        self.changed();
        self.reassess(number).await;
        // Before the holder looks at what it holds.
        self.publish().await;
        Ok(lease)
    }

    fn end(&self, number: u64, reason: &str) -> bool {
        let ended = {
            let mut state = self.state();
            let is_written = state.leases.get(&number).is_some_and(|granted| granted.is_written);
            if is_written { state.leases.remove(&number) } else { None }
        };
        let Some(granted) = ended else { return false };
        self.shared.journal.end(granted.lease, reason.to_owned());
        self.changed();
        true
    }

    /// Forgets of what is in doubt who has gone.
    async fn reassess_doubt(&self) {
        let Some(doubt) = self.state().doubt.clone() else { return };
        let mut holders = Vec::new();
        for holder in doubt.holders.iter().cloned() {
            let living = end::living(&self.shared.proc, holder.clone()).await;
            if living.is_none_or(|living| !living.is_empty()) {
                holders.push(holder);
            }
        }
        if holders.len() == doubt.holders.len() {
            return;
        }
        let left = (!holders.is_empty()).then_some(Doubt { reason: doubt.reason, holders });
        self.state().doubt.clone_from(&left);
        self.shared.journal.doubt(left);
        self.changed();
    }

    /// Tells what shows the GPUs who holds them, at each change, for ever.
    async fn publish_changes(self) {
        let mut changes = self.changes();
        loop {
            self.publish().await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn publish(&self) {
        let _last = self.shared.publishing.lock().await;
        let holder = |lease: Lease| creel_discovery::snapshot::Holder {
            container: lease.holder.name(),
            uid: lease.holder.uid,
            devices: lease.devices.into_iter().map(|held| held.uuid).collect(),
        };
        let holders = self.all().into_iter().filter(|lease| !lease.devices.is_empty());
        self.shared.gpus.set_holders(holders.map(holder).collect()).await;
    }

    fn holder(&self, number: u64) -> Option<Holder> {
        self.state().leases.get(&number).map(|granted| granted.lease.holder.clone())
    }

    fn numbers(&self) -> Vec<u64> {
        self.state().leases.keys().copied().collect()
    }

    fn set_awaited(&self, number: u64, awaited: Vec<Awaited>) {
        if let Some(granted) = self.state().leases.get_mut(&number) {
            granted.awaited = awaited;
        }
    }

    fn changed(&self) {
        self.shared.changes.send_modify(|change| *change += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue, until it is dropped.
struct Turn<'a> {
    leases: &'a Leases,
    ticket: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.leases.state().queue.leave(self.ticket);
        self.leases.changed();
    }
}

impl Granted {
    fn lease(&self) -> Lease {
        self.lease.clone()
    }
}

/// Whether a peer is of a holder, and of its user.
fn is_of(holder: &Holder, peer: &Peer) -> bool {
    if holder.uid != peer.uid {
        return false;
    }
    let by_cgroup =
        peer.container.as_ref().ok().and_then(Option::as_ref).is_some_and(|container| {
            container.by_cgroup && holder.container.as_deref() == Some(container.id.as_str())
        });
    by_cgroup || holder.includes(peer)
}

/// Whether two holders go by the same name: the same container of a user, or the same process.
fn is_same(one: &Holder, other: &Holder) -> bool {
    one.uid == other.uid
        && one.container == other.container
        && (one.container.is_some() || one.processes == other.processes)
}

/// The devices with their addresses where the holder runs: their places among what it sees.
fn held(devices: &[Device<'_>], visible: Option<&[String]>) -> Vec<Held> {
    let place = |device: &Device<'_>| {
        let place = visible?.iter().position(|uuid| uuid == device.uuid)?;
        u32::try_from(place).ok()
    };
    let sees_all = devices.iter().all(|device| place(device).is_some());
    let address =
        |device: &Device<'_>| place(device).filter(|_| sees_all).unwrap_or(device.unit.address);
    devices
        .iter()
        .map(|device| Held { uuid: device.uuid.to_owned(), address: address(device) })
        .collect()
}

/// The lease that a peer has, if it is as much as it asks for.
fn enough(lease: Lease, request: &Request) -> Result<Lease, Refusal> {
    enough_of(lease.devices.len(), request)?;
    Ok(lease)
}

fn enough_of(due: usize, request: &Request) -> Result<(), Refusal> {
    match request.gpus {
        Some(asked) if asked as usize > due => Err(Refusal::TooMany(format!(
            "{asked} GPUs asked for, and {due} are due here: a container has what YARN allotted \
             to it, and what a process with a lease starts has that lease"
        ))),
        _ => Ok(()),
    }
}

fn describe(doubt: &Doubt) -> String {
    let names: Vec<_> = doubt.holders.iter().map(Holder::name).collect();
    format!("{}, and may be held by {}", doubt.reason, names.join(", "))
}
