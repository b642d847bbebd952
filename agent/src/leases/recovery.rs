//! What an agent that starts makes of the leases of the one before.
//!
//! Two witnesses say what was held: the store, and the audit log. A lease that either has is one,
//! if its holder still lives. Where the store was lost (damaged, or written by a newer agent) and
//! the log may have lost lines too, a container or process that runs may hold a device that
//! nobody remembers. Such holders are **in doubt**: as long as one lives, no device is given that
//! is not known to be free.
//!
//! Where there is no store at all, this is the first start, or somebody took the state directory away.
//! A third witness tells: the snapshot of the GPUs, which is in the run directory too, names the
//! containers that hold some.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tracing::{error, warn};

use super::LEASE_VARIABLE;
use super::audit::Audit;
use super::holder::Holder;
use super::lease::Lease;
use super::store::{self, Content, Store};
use crate::peer::container::{container_of, lineage};
use crate::peer::{CGROUPS, Proc};

/// What was lost and may be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Doubt {
    /// What happened.
    pub(super) reason: String,
    /// Who may hold a device.
    pub(super) holders: Vec<Holder>,
}

/// What there is to begin with.
#[derive(Debug)]
pub(super) struct Recovered {
    /// The store, unless it can't be used.
    pub(super) store: Option<Store>,
    /// Leases whose holders live, and what is in doubt.
    pub(super) content: Content,
    /// Leases whose holders have gone.
    pub(super) gone: Vec<Lease>,
    /// What is wrong with the store.
    pub(super) problem: Option<String>,
}

/// Reads the leases of a state directory. `shown` are the containers that the agent before showed
/// with GPUs.
pub(super) fn recover(dir: &Path, audit: &Audit, proc: &Proc, shown: &[&str]) -> Recovered {
    let path = dir.join(store::FILE);
    let is_missing = path.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut problem = None;
    let mut is_lost = false;
    let opened = Store::open(dir).or_else(|failed| {
        error!("{failed}; leases are taken from the audit log and from what runs");
        problem = Some(failed.to_string());
        match failed {
            store::Error::Lost { .. } => {
                is_lost = true;
                Store::open(dir)
            }
            unusable @ store::Error::Unusable { .. } => Err(unusable),
        }
    });
    let (store, content) = match opened {
        Ok((store, content)) => (Some(store), content),
        Err(failed) => {
            problem.get_or_insert_with(|| failed.to_string());
            (None, Content::default())
        }
    };
    let logged = audit.unended();
    let mut leases: BTreeMap<u64, Lease> =
        content.leases.into_iter().map(|lease| (lease.number, lease)).collect();
    for (number, lease) in logged {
        if !leases.contains_key(&number) && lives(&lease.holder, proc) {
            warn!("{} is in the audit log and not in the store: it is taken up", lease.id());
            leases.insert(number, lease);
        }
    }
    let next = leases.keys().next_back().map_or(0, |last| last + 1).max(content.next).max(1);
    let (living, gone): (Vec<_>, Vec<_>) =
        leases.into_values().partition(|lease| lives(&lease.holder, proc));
    let mut doubt = content.doubt;
    if is_lost {
        let reason = problem.clone().unwrap_or_default();
        doubt = Some(Doubt { reason, holders: unknown(&living, proc) });
    }
    if is_missing {
        let holders = forgotten(shown, &living, proc);
        let reason = format!("the lease store {} is gone with what it held", path.display());
        doubt = (!holders.is_empty()).then_some(Doubt { reason, holders });
    }
    if let Some(doubt) = &mut doubt {
        doubt.holders.retain(|holder| lives(holder, proc));
    }
    let doubt = doubt.filter(|doubt| !doubt.holders.is_empty());
    if let Some(doubt) = &doubt {
        let names: Vec<_> = doubt.holders.iter().map(Holder::name).collect();
        warn!("these may hold GPUs, and none is given until they have ended: {}", names.join(", "));
    }
    let content = Content { leases: living, next, doubt };
    if let Some(store) = &store
        && let Err(failed) = store.rewrite(&content)
    {
        error!("{failed}");
        problem.get_or_insert_with(|| failed.to_string());
    }
    Recovered { store, content, gone, problem }
}

/// Whether a holder lives. One that can't be looked at may.
pub(super) fn lives(holder: &Holder, proc: &Proc) -> bool {
    holder.living(proc).map_or(true, |living| !living.is_empty())
}

/// The containers that were shown with GPUs and run, if no lease is known of them; and then the
/// processes of `creel run` too, which are not shown.
fn forgotten(shown: &[&str], known: &[Lease], proc: &Proc) -> Vec<Holder> {
    if shown.is_empty() {
        return Vec::new();
    }
    let mut holders = unknown(known, proc);
    // Nobody is told of a lease before its container is shown.
    holders.retain(|holder| {
        holder.container.as_deref().is_none_or(|container| shown.contains(&container))
    });
    if holders.iter().all(|holder| holder.container.is_none()) {
        holders.clear();
    }
    holders
}

/// The containers that run, and the processes of `creel run`, of which no lease is known.
fn unknown(known: &[Lease], proc: &Proc) -> Vec<Holder> {
    let Ok(boot) = proc.boot_id() else { return Vec::new() };
    let mut unknown: BTreeMap<String, Holder> = BTreeMap::new();
    for pid in proc.pids().unwrap_or_default() {
        let Ok(users) = proc.users(pid) else { continue };
        let uid = users[1];
        let lineage = lineage(proc, pid);
        let Some(stat) = lineage.first().copied().filter(|stat| !stat.ended) else { continue };
        let holder = match container_of(proc, Path::new(CGROUPS), &lineage, uid) {
            Ok(Some(container)) => Holder::container(&container, uid, boot.clone()),
            // A container that ends just now, or one that can't be told.
            Err(_) => Holder::of_process(stat.process, uid, boot.clone()),
            Ok(None) => match proc.variable(pid, LEASE_VARIABLE) {
                Ok(Some(_)) => Holder::of_process(stat.process, uid, boot.clone()),
                _ => continue,
            },
        };
        let is_known = known.iter().any(|lease| {
            lease.holder.container.is_some() && lease.holder.container == holder.container
                || lease
                    .holder
                    .processes
                    .iter()
                    .any(|process| lineage.iter().any(|stat| stat.process == *process))
        });
        if !is_known {
            unknown.entry(holder.name()).or_insert(holder);
        }
    }
    unknown.into_values().collect()
}
