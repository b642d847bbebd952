//! Executors leave a GPU that is somebody else's.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::executors::{Device, Executors};
use crate::leases::Leases;

/// The lease on each device.
type Held = BTreeMap<String, Tenant>;

/// A lease, as far as executors mind.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tenant {
    lease: String,
    uid: u32,
}

/// An executor that is to end.
#[derive(Debug, PartialEq, Eq)]
struct Notice {
    uuid: String,
    /// The user whose executor may stay.
    keep: Option<u32>,
    reason: String,
}

/// Ends executors as leases come and go, for ever.
pub(super) async fn follow(leases: Leases, executors: Arc<Executors>) {
    let mut changes = leases.changes();
    let mut before = held(&leases);
    while changes.changed().await.is_ok() {
        let now = held(&leases);
        for notice in notices(&before, &now) {
            executors.end_on(&Device::Gpu(notice.uuid), notice.keep, &notice.reason);
        }
        before = now;
    }
}

fn held(leases: &Leases) -> Held {
    let of = |lease: crate::leases::Lease| {
        let tenant = Tenant { lease: lease.id(), uid: lease.holder.uid };
        lease.devices.into_iter().map(move |held| (held.uuid, tenant.clone()))
    };
    leases.all().into_iter().flat_map(of).collect()
}

fn notices(before: &Held, now: &Held) -> Vec<Notice> {
    let devices = before.keys().chain(now.keys().filter(|uuid| !before.contains_key(*uuid)));
    let notice = |uuid: &String| {
        let (keep, reason) = match (before.get(uuid), now.get(uuid)) {
            (before, now) if before == now => return None,
            // The user borrowed it, and has it now.
            (None, Some(tenant)) => {
                (Some(tenant.uid), format!("{uuid} is held by {} now", tenant.lease))
            }
            (Some(tenant), _) => (None, format!("{} on {uuid} has ended", tenant.lease)),
            (None, None) => return None,
        };
        Some(Notice { uuid: uuid.clone(), keep, reason })
    };
    devices.filter_map(notice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(devices: &[(&str, u64, u32)]) -> Held {
        let tenant = |lease: u64, uid| Tenant { lease: crate::leases::lease::id(lease), uid };
        devices
            .iter()
            .map(|(uuid, lease, uid)| ((*uuid).to_owned(), tenant(*lease, *uid)))
            .collect()
    }

    #[test]
    fn what_changed_hands_is_left() {
        let before = held(&[("GPU-0", 1, 7), ("GPU-1", 2, 7), ("GPU-2", 3, 8)]);
        let now = held(&[("GPU-0", 1, 7), ("GPU-1", 4, 7), ("GPU-3", 5, 9)]);
        let notice = |uuid: &str, keep, reason: &str| Notice {
            uuid: uuid.to_owned(),
            keep,
            reason: reason.to_owned(),
        };
        let expected = [
            notice("GPU-1", None, "lease-2 on GPU-1 has ended"),
            notice("GPU-2", None, "lease-3 on GPU-2 has ended"),
            notice("GPU-3", Some(9), "GPU-3 is held by lease-5 now"),
        ];
        assert_eq!(notices(&before, &now), expected);
        assert_eq!(notices(&now, &now), []);
    }
}
