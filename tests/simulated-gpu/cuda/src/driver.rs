//! What a process has of the driver, and what every call goes through.
//!
//! A call is refused before `cuInit`, in a process forked after it, and after a sticky error; then
//! the node's faults that concern it happen; then it is done.

use std::fmt::Display;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use serde_json::Value;
use simulated_nvml::fault::Watch;
use simulated_nvml::node::{self, CUDA_LOG};
use simulated_nvml::{Action, Code, CudaCode, Fault, Node};

use crate::context::{self, Context};
use crate::device::{self, Device};
use crate::event::Event;
use crate::kernels::Kernels;
use crate::log::Log;
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::stream::{Hold, Stream};
use crate::table::Table;

/// The result of a call.
pub(crate) type Result<T> = std::result::Result<T, CudaCode>;

/// Decides all that is left to chance: the order of a kernel's threads, when a stream works.
const SEED_VARIABLE: &str = "SIMULATED_GPU_SEED";

/// The driver in this process.
pub(crate) struct Driver {
    pub(crate) node: Node,
    pub(crate) devices: Vec<Device>,
    pub(crate) kernels: Kernels,
    pub(crate) memory: Memory,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) pools: Table<Pool>,
    pub(crate) hold: Hold,
    pub(crate) log: Log,
    seed: u64,
    launches: AtomicU64,
    pid: u32,
    sticky: AtomicU32,
    faults: Watch,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// `cuInit`.
pub(crate) fn start() -> Result<()> {
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = DRIVER.get() {
        driver.check()?;
        return driver.suffer("cuInit", None);
    }
    let driver = Driver::new().map_err(|error| complain(CudaCode::UNKNOWN, error))?;
    driver.suffer("cuInit", None)?;
    if driver.devices.is_empty() {
        return Err(CudaCode::NO_DEVICE);
    }
    let _ = DRIVER.set(driver);
    Ok(())
}

/// A call that is about no device.
pub(crate) fn call(name: &str, body: impl FnOnce(&'static Driver) -> Result<()>) -> u32 {
    code_of((|| {
        let driver = ready()?;
        driver.suffer(name, None)?;
        body(driver)
    })())
}

/// A call that is about a device, by its ordinal.
pub(crate) fn call_device(
    name: &str,
    ordinal: i32,
    body: impl FnOnce(&'static Driver, &'static Device) -> Result<()>,
) -> u32 {
    code_of((|| {
        let driver = ready()?;
        let device = driver.device(ordinal)?;
        driver.suffer(name, Some(device.gpu))?;
        body(driver, device)
    })())
}

/// A call that is about the current context.
pub(crate) fn call_current(
    name: &str,
    body: impl FnOnce(&'static Driver, &Context) -> Result<()>,
) -> u32 {
    code_of((|| {
        let driver = ready()?;
        let context = context::current(driver)?;
        driver.suffer(name, Some(driver.devices[context.device].gpu))?;
        body(driver, &context)
    })())
}

fn ready() -> Result<&'static Driver> {
    let driver = DRIVER.get().ok_or(CudaCode::NOT_INITIALIZED)?;
    driver.check()?;
    Ok(driver)
}

/// The result as C sees it.
pub(crate) fn code_of(result: Result<()>) -> u32 {
    result.err().map_or(0, |code| code.0)
}

/// Says why a call is refused, where the code alone doesn't.
pub(crate) fn complain(code: CudaCode, why: impl Display) -> CudaCode {
    eprintln!("simulated CUDA: {code}: {why}");
    code
}

impl Driver {
    fn new() -> std::result::Result<Self, String> {
        let directory = node::of_library(start as *const ()).map_err(|error| error.to_string())?;
        let node = Node::open(&directory).map_err(|error| error.to_string())?;
        let seed = std::env::var(SEED_VARIABLE).ok().and_then(|seed| seed.parse().ok());
        let devices = device::visible(&node.gpus);
        let pools = Table::default();
        for (ordinal, device) in devices.iter().enumerate() {
            let pool = Pool::new(ordinal, true);
            let _ = device.default_pool.set(pool.handle);
            device.set_pool(pool.handle);
            pools.insert(pool.handle, pool.into());
        }
        Ok(Self {
            kernels: Kernels::load(&directory)?,
            memory: Memory::new(&devices)?,
            log: Log::open(&directory.join(CUDA_LOG)),
            node,
            devices,
            pools,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            hold: Hold::from_environment(),
            seed: seed.unwrap_or(1),
            launches: AtomicU64::new(0),
            pid: std::process::id(),
            sticky: AtomicU32::new(0),
            faults: Watch::new(),
        })
    }

    /// A device by its ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        let ordinal = usize::try_from(ordinal).map_err(|_| CudaCode::INVALID_DEVICE)?;
        self.devices.get(ordinal).ok_or(CudaCode::INVALID_DEVICE)
    }

    /// A seed for the next kernel: the same ones in each run.
    pub(crate) fn next_seed(&self) -> u64 {
        self.chance(self.launches.fetch_add(1, Ordering::Relaxed))
    }

    /// What chance has it for a number.
    pub(crate) fn chance(&self, number: u64) -> u64 {
        // The last steps of splitmix64.
        let z = (self.seed << 32 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// An error if nothing works any more.
    pub(crate) fn check(&self) -> Result<()> {
        if std::process::id() != self.pid {
            return Err(CudaCode::NOT_INITIALIZED);
        }
        match self.sticky.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CudaCode(code)),
        }
    }

    /// From now on all calls of the process fail with this.
    pub(crate) fn fail_for_good(&self, code: CudaCode, why: impl Display) {
        let first = self.sticky.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
        if first.is_ok() {
            complain(code, why);
        }
    }

    /// Lets the faults happen that concern a call. Errors come at once, also of asynchronous calls;
    /// what takes long does so when a stream comes to it: [`Driver::suffer_at_work`].
    fn suffer(&self, function: &str, gpu: Option<u32>) -> Result<()> {
        self.meet(function, gpu, false, |fault, action| match action {
            Action::FailCuda(code) if code.is_sticky() => {
                self.fail_for_good(code, format_args!("a fault of {function}"));
                Err(code)
            }
            Action::FailCuda(code) => Err(code),
            Action::Fail(Code::GPU_IS_LOST) => {
                self.fail_for_good(CudaCode::UNKNOWN, "the GPU is lost");
                Err(CudaCode::UNKNOWN)
            }
            Action::Fail(_) => Ok(()),
            Action::Delay(_) | Action::Hang => {
                self.take_long(fault, action);
                Ok(())
            }
        })
    }

    /// Lets asynchronous work take as long as faults want.
    pub(crate) fn suffer_at_work(&self, function: &str, gpu: u32) {
        let _ = self.meet(function, Some(gpu), true, |fault, action| {
            self.take_long(fault, action);
            Ok(())
        });
    }

    fn take_long(&self, fault: &Fault, action: Action) {
        match action {
            Action::Delay(delay) => thread::sleep(delay),
            Action::Hang => self.faults.hang(&self.node, fault),
            Action::Fail(_) | Action::FailCuda(_) => {}
        }
    }

    /// Does something for each fault that happens to a call, or to its work: a call is counted once,
    /// where the fault would show.
    fn meet(
        &self,
        function: &str,
        gpu: Option<u32>,
        at_work: bool,
        mut happen: impl FnMut(&Fault, Action) -> Result<()>,
    ) -> Result<()> {
        let faults =
            self.faults.faults(&self.node).map_err(|error| complain(CudaCode::UNKNOWN, error))?;
        for watched in faults.iter() {
            let fault = &watched.fault;
            let action = fault.action().map_err(|_| CudaCode::UNKNOWN)?;
            let takes_long = matches!(action, Action::Delay(_) | Action::Hang);
            let ours = fault.function.as_ref().is_none_or(|name| name.starts_with("cu"));
            if ours
                && (takes_long && is_asynchronous(function)) == at_work
                && fault.concerns(function, gpu)
                && watched.strikes()
            {
                happen(fault, action)?;
            }
        }
        Ok(())
    }

    /// Adds a call to the node's log.
    pub(crate) fn record(&self, call: &str, fields: &Value) {
        self.log.add(call, fields);
    }
}

/// Whether a function leaves its work to a stream.
fn is_asynchronous(function: &str) -> bool {
    function.ends_with("Async") || function.ends_with("Async_v2") || function == "cuLaunchKernel"
}
