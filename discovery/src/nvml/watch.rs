//! What NVML reports as it happens.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};

use super::{library, raw};
use crate::Error;
use crate::event::XidEvent;

/// How long one wait lasts, in milliseconds. An event ends it at once.
const WAIT_MS: u32 = 60_000;

/// How long to leave a driver alone that has just lost a GPU.
const PAUSE: Duration = Duration::from_secs(1);

/// How an end of watching came about that is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwatched {
    /// There is no driver.
    NoDriver,
    /// No GPU reports events.
    Unsupported,
    /// Nobody listens any more.
    Deaf,
}

/// Reports the Xid events of all GPUs, until `report` says false. As [`read`](super::read), this
/// is for a process of its own.
pub fn watch(mut report: impl FnMut(XidEvent) -> bool) -> Result<Unwatched, Error> {
    let Some((nvml, _)) = library::start()? else { return Ok(Unwatched::NoDriver) };
    let failed = |error: NvmlError| Error::Driver {
        what: "report errors of GPUs",
        words: raw::words(nvml.lib(), error),
    };
    let count = nvml.device_count().map_err(failed)?;
    // What a GPU that is lost later says no more.
    let gpus: Vec<_> = (0..count).filter_map(|index| nvml.device_by_index(index).ok()).collect();
    let identities: HashMap<_, _> = gpus
        .iter()
        .map(|gpu| (raw::handle(gpu), (gpu.uuid().ok(), gpu.pci_info().ok().map(|pci| pci.bus_id))))
        .collect();
    loop {
        let Some(set) = listen(&nvml, &gpus).map_err(failed)? else {
            return Ok(Unwatched::Unsupported);
        };
        loop {
            match set.wait(WAIT_MS) {
                Ok(event) => {
                    let Some(xid) = event.event_data else { continue };
                    let (uuid, pci_bus_id) =
                        identities.get(&raw::handle(&event.device)).cloned().unwrap_or_default();
                    let xid = match xid {
                        XidError::Value(number) => Some(number),
                        XidError::Unknown => None,
                    };
                    let now = SystemTime::now().duration_since(UNIX_EPOCH);
                    let time = now.map_or(0, |now| now.as_secs());
                    if !report(XidEvent { uuid, pci_bus_id, xid, time }) {
                        return Ok(Unwatched::Deaf);
                    }
                }
                Err(NvmlError::Timeout) => {}
                // The others still report.
                Err(NvmlError::GpuLost) => {
                    thread::sleep(PAUSE);
                    break;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A set of the Xid events of all GPUs that can report them; absent: none can.
fn listen<'nvml>(
    nvml: &'nvml Nvml,
    gpus: &[Device<'nvml>],
) -> Result<Option<EventSet<'nvml>>, NvmlError> {
    let mut able: Vec<_> = gpus
        .iter()
        .filter(|gpu| {
            let types = gpu.supported_event_types();
            types.is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
        })
        .collect();
    'set: while !able.is_empty() {
        let mut set = nvml.create_event_set()?;
        for place in 0..able.len() {
            // A set is gone with the first registration that fails.
            let registered = able[place].register_events(EventTypes::CRITICAL_XID_ERROR, set);
            let Ok(registered) = registered else {
                able.remove(place);
                continue 'set;
            };
            set = registered;
        }
        return Ok(Some(set));
    }
    Ok(None)
}
