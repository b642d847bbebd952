//! Which devices are given: a function of what there is and what is held, and of nothing else.
//!
//! Devices go by UUID; of those that are free, those with the lowest addresses are given, so that
//! the same node gives the same answer. A device is free if
//!
//! - no lease is on it,
//! - it is fit for use,
//! - the driver lists no process on it: whoever that is has no lease, or the device would not be
//!   free,
//! - it is not in doubt ([`super::recovery`]).

use std::fmt::{self, Write};

use crate::gpus::Unit;

/// How many devices a request is for, and of which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// So many.
    pub(super) count: usize,
    /// Of these, by UUID: the others are out of its reach. Absent: of all.
    pub(super) among: Option<Vec<String>>,
}

impl Want {
    /// So many, whichever.
    pub(super) fn any(count: usize) -> Self {
        Self { count, among: None }
    }

    fn is_met_by(&self, device: &Device<'_>) -> bool {
        let is_named = |uuids: &Vec<String>| uuids.iter().any(|uuid| uuid == device.uuid);
        self.among.as_ref().is_none_or(is_named)
    }
}

/// Why a device is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// A lease is on it: its id, and its holder's name.
    Leased(String, String),
    /// It is unfit for use, for these reasons.
    Unfit(String),
    /// These processes are on it, and no lease is.
    InUse(Vec<u32>),
    /// What was lost may have been on it.
    InDoubt(String),
}

impl Taken {
    /// Whether it may become free by itself.
    fn passes(&self) -> bool {
        !matches!(self, Self::Unfit(_))
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leased(id, holder) => write!(f, "held by {holder} ({id})"),
            Self::Unfit(reasons) => write!(f, "unfit for use: {reasons}"),
            Self::InUse(processes) => {
                let processes: Vec<_> = processes.iter().map(u32::to_string).collect();
                let noun = if processes.len() == 1 { "process" } else { "processes" };
                write!(f, "in use by {noun} {} without a lease", processes.join(", "))
            }
            Self::InDoubt(reason) => write!(f, "not given: {reason}"),
        }
    }
}

/// The devices of the node, each with why it is not free.
#[derive(Clone, Debug)]
pub(super) struct Board<'a> {
    devices: Vec<(Device<'a>, Option<Taken>)>,
}

/// A device that can be told from others: one without a UUID is given to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Device<'a> {
    pub(super) uuid: &'a str,
    pub(super) unit: &'a Unit,
}

impl<'a> Board<'a> {
    /// The devices in the order of their addresses. `taken` says why one is not free, but for
    /// its health.
    pub(super) fn new(units: &'a [Unit], taken: impl Fn(Device<'a>) -> Option<Taken>) -> Self {
        let unfit = |unit: &Unit| (!unit.usable).then(|| Taken::Unfit(unit.reasons.join(", ")));
        let device = |unit: &'a Unit| {
            let device = Device { uuid: unit.uuid.as_deref()?, unit };
            Some((device, taken(device).or_else(|| unfit(unit))))
        };
        let mut devices: Vec<_> = units.iter().filter_map(device).collect();
        devices.sort_by_key(|(device, _)| device.unit.address);
        Self { devices }
    }

    /// Takes what is wanted; `None`, and nothing is taken, if it is not free.
    pub(super) fn take(&mut self, want: &Want) -> Option<Vec<Device<'a>>> {
        let free = self.free().filter(|at| want.is_met_by(&self.devices[*at].0));
        let chosen: Vec<usize> = free.take(want.count).collect();
        if chosen.len() < want.count {
            return None;
        }
        let taken = Taken::Leased(String::new(), "an earlier request".to_owned());
        let take = |at: usize| {
            self.devices[at].1 = Some(taken.clone());
            self.devices[at].0
        };
        Some(chosen.into_iter().map(take).collect())
    }

    /// Sets aside what an earlier request waits for, so that no later one overtakes it. One that
    /// asks for more than there can ever be, as things stand, keeps nobody waiting.
    pub(super) fn set_aside(&mut self, want: &Want) {
        if self.take(want).is_some() || !self.is_possible(want) {
            return;
        }
        let waits = Taken::Leased(String::new(), "an earlier request".to_owned());
        for (device, taken) in &mut self.devices {
            if want.is_met_by(device) && taken.is_none() {
                *taken = Some(waits.clone());
            }
        }
    }

    /// Whether a request can be met once what passes has passed.
    fn is_possible(&self, want: &Want) -> bool {
        let may_come = |taken: &Option<Taken>| taken.as_ref().is_none_or(Taken::passes);
        let devices = self.devices.iter();
        let fit = devices.filter(|(device, taken)| want.is_met_by(device) && may_come(taken));
        fit.count() >= want.count
    }

    fn free(&self) -> impl Iterator<Item = usize> {
        let free = self.devices.iter().enumerate().filter(|(_, (_, taken))| taken.is_none());
        free.map(|(at, _)| at)
    }

    /// Whether a process without a lease is on a device: only another look at the driver tells
    /// when it has gone.
    pub(super) fn is_in_use(&self) -> bool {
        self.devices.iter().any(|(_, taken)| matches!(taken, Some(Taken::InUse(_))))
    }

    /// Why a request is not met: who holds what.
    pub(super) fn shortage(&self, want: &Want) -> String {
        let mut asked = count_of(want.count);
        if let Some(among) = &want.among {
            let _ = write!(asked, " of {}", among.join(", "));
        }
        if self.devices.is_empty() {
            return format!("{asked} asked for, and the node has none");
        }
        let total = self.devices.len();
        let listed: Vec<_> = self
            .devices
            .iter()
            .map(|(device, taken)| {
                let why = taken.as_ref().map_or_else(|| "free".to_owned(), Taken::to_string);
                format!("{} ({}) {why}", device.unit.address, device.uuid)
            })
            .collect();
        let free = self.free().count();
        let missing = if want.count > total {
            format!(", which has only {total}")
        } else {
            format!(": {free} of {total} free")
        };
        format!("{asked} asked for on this node{missing}; {}", listed.join("; "))
    }
}

fn count_of(count: usize) -> String {
    format!("{count} {}", if count == 1 { "GPU" } else { "GPUs" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unit(address: u32) -> Unit {
        Unit { address, uuid: Some(format!("GPU-{address}")), usable: true, ..Unit::default() }
    }

    fn make_unfit(unit: &mut Unit) {
        unit.usable = false;
        unit.reasons = vec!["lost".to_owned()];
    }

    fn addresses(taken: Option<Vec<Device<'_>>>) -> Option<Vec<u32>> {
        taken.map(|devices| devices.iter().map(|device| device.unit.address).collect())
    }

    #[test]
    fn the_lowest_that_are_free() {
        let mut devices: Vec<_> = (0..5).map(unit).collect();
        make_unfit(&mut devices[1]);
        devices.reverse();
        let taken = |device: Device<'_>| match device.unit.address {
            0 => Some(Taken::Leased("lease-1".to_owned(), "container_1".to_owned())),
            3 => Some(Taken::InUse(vec![7])),
            _ => None,
        };
        let mut board = Board::new(&devices, taken);
        assert!(board.is_in_use());
        assert_eq!(addresses(board.take(&Want::any(3))), None);
        let text = board.shortage(&Want::any(3));
        for part in [
            "3 GPUs asked for on this node: 2 of 5 free",
            "0 (GPU-0) held by container_1 (lease-1)",
            "1 (GPU-1) unfit for use: lost",
            "2 (GPU-2) free",
            "3 (GPU-3) in use by process 7 without a lease",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(addresses(board.take(&Want::any(2))), Some(vec![2, 4]));
        assert_eq!(addresses(board.take(&Want::any(1))), None);
        assert_eq!(addresses(board.take(&Want::any(0))), Some(vec![]));
    }

    #[test]
    fn these_or_none() {
        let devices: Vec<_> = (0..3).map(unit).collect();
        let these = |addresses: &[u32]| Want {
            count: addresses.len(),
            among: Some(addresses.iter().map(|address| format!("GPU-{address}")).collect()),
        };
        let mut board = Board::new(&devices, |_| None);
        assert_eq!(addresses(board.take(&these(&[2, 1]))), Some(vec![1, 2]));
        assert_eq!(addresses(board.take(&these(&[0, 1]))), None);
        assert_eq!(addresses(board.take(&these(&[7]))), None);
        assert_eq!(addresses(board.take(&these(&[0]))), Some(vec![0]));
    }

    #[test]
    fn who_came_first_is_not_overtaken_unless_it_waits_in_vain() {
        let mut devices: Vec<_> = (0..3).map(unit).collect();
        let held = |device: Device<'_>| {
            (device.unit.address == 0).then(|| Taken::Leased("lease-1".to_owned(), "c".to_owned()))
        };
        let mut board = Board::new(&devices, held);
        board.set_aside(&Want::any(3));
        assert_eq!(addresses(board.take(&Want::any(1))), None);
        let mut board = Board::new(&devices, held);
        board.set_aside(&Want::any(1));
        assert_eq!(addresses(board.take(&Want::any(1))), Some(vec![2]));
        let mut board = Board::new(&devices, held);
        let among = Some(vec!["GPU-0".to_owned(), "GPU-1".to_owned()]);
        board.set_aside(&Want { count: 2, among });
        assert_eq!(addresses(board.take(&Want::any(1))), Some(vec![2]));
        make_unfit(&mut devices[0]);
        let mut board = Board::new(&devices, |_| None);
        board.set_aside(&Want::any(3));
        assert_eq!(addresses(board.take(&Want::any(2))), Some(vec![1, 2]));
    }

    proptest! {
        /// Whatever is asked for in whatever order: nothing is given that is not free, nothing is
        /// given twice, and what could be given is.
        #[test]
        fn no_device_is_given_twice(
            states in prop::collection::vec(0..4_u8, 0..16),
            wants in prop::collection::vec(0..6_usize, 0..12),
        ) {
            let mut devices: Vec<_> = (0..).map(unit).take(states.len()).collect();
            for (unit, _) in devices.iter_mut().zip(&states).filter(|(_, state)| **state == 1) {
                make_unfit(unit);
            }
            let taken = |device: Device<'_>| match states[device.unit.address as usize] {
                2 => Some(Taken::InUse(vec![1])),
                3 => Some(Taken::Leased("l".to_owned(), "c".to_owned())),
                _ => None,
            };
            let mut board = Board::new(&devices, taken);
            let mut free = Board::new(&devices, taken).free().count();
            let mut given = std::collections::BTreeSet::new();
            for count in wants {
                match board.take(&Want::any(count)) {
                    Some(devices) => {
                        prop_assert_eq!(devices.len(), count);
                        free -= count;
                        for device in devices {
                            prop_assert_eq!(states[device.unit.address as usize], 0);
                            prop_assert!(given.insert(device.unit.address));
                        }
                    }
                    None => prop_assert!(count > free),
                }
            }
        }
    }
}
