//! From `nvmlInit` to `nvmlShutdown`: the node, its faults, and the handles given out.

use std::sync::{Arc, PoisonError, RwLock};
use std::thread;

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::fault::Watch;
use crate::mig::Slice;
use crate::topology::Gpu;
use crate::{Action, Code, Fault, Node, node};

struct Session {
    /// Calls of `nvmlInit` without their `nvmlShutdown`.
    users: u32,
    node: Arc<Node>,
}

static SESSION: RwLock<Option<Session>> = RwLock::new(None);

/// The node's faults.
static WATCH: Watch = Watch::new();

/// What a device handle stands for.
pub(super) struct Device<'node> {
    pub(super) node: &'node Node,
    /// NVML index.
    pub(super) index: u32,
    pub(super) gpu: &'node Gpu,
    /// The slice and its index, where the handle is of one.
    pub(super) slice: Option<(u32, &'node Slice)>,
}

impl Device<'_> {
    /// Refuses what only a whole GPU has.
    pub(super) fn whole(&self) -> Result<(), Code> {
        if self.slice.is_some() { Err(Code::NOT_SUPPORTED) } else { Ok(()) }
    }
}

/// Begins a session, or joins the one there is.
pub(super) fn begin(function: &str) -> nvmlReturn_t {
    let mut session = SESSION.write().unwrap_or_else(PoisonError::into_inner);
    let node = match &mut *session {
        Some(session) => Arc::clone(&session.node),
        None => match node::of_library(begin as *const ())
            .and_then(|directory| Node::open(&directory))
        {
            Ok(node) => Arc::new(node),
            Err(error) => {
                eprintln!("simulated NVML: {error}");
                return Code::UNKNOWN.0;
            }
        },
    };
    if let Err(code) = suffer(&node, function, None) {
        return code.0;
    }
    session.get_or_insert(Session { users: 0, node }).users += 1;
    Code::SUCCESS.0
}

/// Ends a session, or leaves it.
pub(super) fn end() -> nvmlReturn_t {
    if let Err(code) = call(|node| suffer(node, "nvmlShutdown", None)) {
        return code.0;
    }
    let mut session = SESSION.write().unwrap_or_else(PoisonError::into_inner);
    match &mut *session {
        Some(Session { users: 2.., .. }) => session.as_mut().expect("matched").users -= 1,
        Some(_) => *session = None,
        None => return Code::UNINITIALIZED.0,
    }
    Code::SUCCESS.0
}

/// A call that is about no device.
pub(super) fn answer(function: &str, body: impl FnOnce(&Node) -> Result<(), Code>) -> nvmlReturn_t {
    code_of(call(|node| {
        suffer(node, function, None)?;
        body(node)
    }))
}

/// A call that is about a device.
pub(super) fn answer_for(
    function: &str,
    handle: nvmlDevice_t,
    body: impl FnOnce(&Device<'_>) -> Result<(), Code>,
) -> nvmlReturn_t {
    code_of(call(|node| {
        let device = device(node, handle)?;
        suffer(node, function, Some(device.index))?;
        body(&device)
    }))
}

/// A call that asks for the handle of a GPU.
pub(super) fn answer_handle(
    function: &str,
    target: *mut nvmlDevice_t,
    find: impl FnOnce(&Node) -> Result<u32, Code>,
) -> nvmlReturn_t {
    code_of(call(|node| {
        let index = find(node)?;
        suffer_named(node, function, index)?;
        // SAFETY: the caller passes a pointer to a handle, or null.
        unsafe { super::output::put(target, handle(index, None)) }
    }))
}

fn code_of(result: Result<(), Code>) -> nvmlReturn_t {
    result.err().unwrap_or(Code::SUCCESS).0
}

fn call(body: impl FnOnce(&Node) -> Result<(), Code>) -> Result<(), Code> {
    let node = {
        let session = SESSION.read().unwrap_or_else(PoisonError::into_inner);
        let session = session.as_ref().ok_or(Code::UNINITIALIZED)?;
        Arc::clone(&session.node)
    };
    body(&node)
}

/// Lets the faults happen that concern a call.
fn suffer(node: &Node, function: &str, gpu: Option<u32>) -> Result<(), Code> {
    happen(node, |fault| fault.concerns(function, gpu))
}

/// As [`suffer`], for a function that gives a GPU's handle: a lost GPU still has one, so of a
/// GPU's faults only those happen that name the function.
fn suffer_named(node: &Node, function: &str, gpu: u32) -> Result<(), Code> {
    happen(node, |fault| {
        fault.concerns(function, Some(gpu)) && (fault.gpu.is_none() || fault.function.is_some())
    })
}

fn happen(node: &Node, concerns: impl Fn(&Fault) -> bool) -> Result<(), Code> {
    let faults = WATCH.faults(node).map_err(|error| {
        eprintln!("simulated NVML: {error}");
        Code::UNKNOWN
    })?;
    for watched in faults.iter().filter(|watched| concerns(&watched.fault)) {
        if !watched.strikes() {
            continue;
        }
        match watched.fault.action() {
            Ok(Action::Fail(code)) => return Err(code),
            Ok(Action::FailCuda(_)) => {}
            Ok(Action::Delay(delay)) => thread::sleep(delay),
            Ok(Action::Hang) => WATCH.hang(node, &watched.fault),
            Err(_) => return Err(Code::UNKNOWN),
        }
    }
    Ok(())
}

/// Handles are numbers, never dereferenced: a tag, the GPU from 0, and the slice from 1.
const HANDLE_TAG: usize = 0x6770_0000;

pub(super) fn handle(gpu: u32, slice: Option<u32>) -> nvmlDevice_t {
    let slice = slice.map_or(0, |slice| slice as usize + 1);
    std::ptr::without_provenance_mut(HANDLE_TAG | (gpu as usize) << 8 | slice)
}

fn device(node: &Node, handle: nvmlDevice_t) -> Result<Device<'_>, Code> {
    let number = handle.addr();
    if number & !0xffff != HANDLE_TAG {
        return Err(Code::INVALID_ARGUMENT);
    }
    let (index, slice) = (number >> 8 & 0xff, number & 0xff);
    let gpu = node.gpus.get(index).ok_or(Code::INVALID_ARGUMENT)?;
    let slice = match slice.checked_sub(1) {
        None => None,
        Some(number) => {
            let slices = gpu.slices.as_deref().unwrap_or_default();
            Some((number as u32, slices.get(number).ok_or(Code::INVALID_ARGUMENT)?))
        }
    };
    Ok(Device { node, index: index as u32, gpu, slice })
}
