//! Event sets.

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use super::output::put;
use super::session::{answer, answer_for, handle};
use crate::node::XID_EVENT;
use crate::{Code, Node};

/// How often a waiting set looks for events.
const CHECK: Duration = Duration::from_millis(5);

/// A set: which events of which GPUs it wants, and the number of the next event to look at.
#[derive(Default)]
struct EventSet {
    wanted: HashMap<u32, u64>,
    next: u64,
}

/// The sets by their handles, which are numbers from 1 and never dereferenced.
static SETS: Mutex<Option<HashMap<usize, EventSet>>> = Mutex::new(None);

fn with_sets<T>(body: impl FnOnce(&mut HashMap<usize, EventSet>) -> T) -> T {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    body(sets.get_or_insert_default())
}

fn with_set<T>(set: nvmlEventSet_t, body: impl FnOnce(&mut EventSet) -> T) -> Result<T, Code> {
    with_sets(|sets| sets.get_mut(&set.addr()).map(body)).ok_or(Code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(set: *mut nvmlEventSet_t) -> nvmlReturn_t {
    answer("nvmlEventSetCreate", |_| {
        let number = with_sets(|sets| {
            let number = sets.keys().max().map_or(1, |last| last + 1);
            sets.insert(number, EventSet::default());
            number
        });
        // SAFETY: the caller passes a pointer to a handle, or null.
        unsafe { put(set, std::ptr::without_provenance_mut(number)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: nvmlEventSet_t) -> nvmlReturn_t {
    answer("nvmlEventSetFree", |_| {
        with_sets(|sets| sets.remove(&set.addr())).map(|_| ()).ok_or(Code::INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedEventTypes(
    device: nvmlDevice_t,
    types: *mut c_ulonglong,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetSupportedEventTypes", device, |device| {
        device.whole()?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(types, XID_EVENT) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(
    device: nvmlDevice_t,
    types: c_ulonglong,
    set: nvmlEventSet_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceRegisterEvents", device, |device| {
        device.whole()?;
        if types & !XID_EVENT != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        with_set(set, |set| {
            if set.wanted.is_empty() {
                set.next = device.node.state.events_raised();
            }
            *set.wanted.entry(device.index).or_default() |= types;
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetWait_v2(
    set: nvmlEventSet_t,
    data: *mut nvmlEventData_t,
    timeout_ms: c_uint,
) -> nvmlReturn_t {
    answer("nvmlEventSetWait_v2", |node| {
        let end = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            if let Some(event) = with_set(set, |set| next_event(node, set))? {
                // SAFETY: the caller passes a pointer to the struct, or null.
                return unsafe { put(data, event) };
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Code::TIMEOUT);
            }
            thread::sleep(left.min(CHECK));
        }
    })
}

fn next_event(node: &Node, set: &mut EventSet) -> Option<nvmlEventData_t> {
    while set.next < node.state.events_raised() {
        let event = node.state.event(set.next);
        set.next += 1;
        let Some(event) = event else { continue };
        if set.wanted.get(&event.gpu).is_some_and(|types| types & event.kind != 0) {
            return Some(nvmlEventData_t {
                device: handle(event.gpu, None),
                eventType: event.kind,
                eventData: event.data,
                gpuInstanceId: c_uint::MAX,
                computeInstanceId: c_uint::MAX,
            });
        }
    }
    None
}
