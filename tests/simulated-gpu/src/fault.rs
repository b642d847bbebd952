//! What can be wrong with a node: calls that fail, take long, or never come back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Code, CudaCode, Error, Node};

/// How often a hanging call looks whether its fault has ended.
const HANG_CHECK: Duration = Duration::from_millis(20);

/// Something that happens to calls into the libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The function that it happens to, as `nvmlDeviceGetName` or `cuMemAlloc_v2`; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The GPU that it happens to, by its NVML index: calls with that GPU's handle or with that of
    /// one of its slices. Absent: all calls, those that are about no GPU included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The call of NVML fails. `GPU_IS_LOST` ends a process's work with CUDA as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// The call of the CUDA driver fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_error: Option<CudaCode>,
    /// The call takes this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The call doesn't come back for as long as the fault lasts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hang: bool,
    /// So many calls of each process go well first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<u64>,
    /// It happens to so many calls of each process, then no more; absent: to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It fails, if it is one of NVML.
    Fail(Code),
    /// It fails, if it is one of the CUDA driver.
    FailCuda(CudaCode),
    /// It takes this long.
    Delay(Duration),
    /// It doesn't come back.
    Hang,
}

impl Fault {
    /// A fault of all calls on one GPU, or of all calls.
    pub fn new(gpu: Option<u32>, action: Action) -> Self {
        let mut fault = Self { gpu, ..Self::default() };
        match action {
            Action::Fail(code) => fault.error = Some(code),
            Action::FailCuda(code) => fault.cuda_error = Some(code),
            Action::Delay(delay) => {
                fault.delay_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
            }
            Action::Hang => fault.hang = true,
        }
        fault
    }

    /// A GPU that has fallen off the bus.
    pub fn lost(gpu: u32) -> Self {
        Self::new(Some(gpu), Action::Fail(Code::GPU_IS_LOST))
    }

    /// The fault of one function only.
    #[must_use]
    pub fn of(self, function: &str) -> Self {
        Self { function: Some(function.to_owned()), ..self }
    }

    /// The fault of call number `call` of a process alone, from 1.
    #[must_use]
    pub fn at(self, call: u64) -> Self {
        Self { skip: Some(call.saturating_sub(1)), times: Some(1), ..self }
    }

    /// The fault of call number `call` of a process and those after it, from 1.
    #[must_use]
    pub fn from(self, call: u64) -> Self {
        Self { skip: Some(call.saturating_sub(1)), times: None, ..self }
    }

    /// What it does; an error if that is nothing, or two things.
    pub fn action(&self) -> Result<Action, Error> {
        match (self.error, self.cuda_error, self.delay_ms, self.hang) {
            (Some(code), None, None, false) => Ok(Action::Fail(code)),
            (None, Some(code), None, false) => Ok(Action::FailCuda(code)),
            (None, None, Some(delay), false) => Ok(Action::Delay(Duration::from_millis(delay))),
            (None, None, None, true) => Ok(Action::Hang),
            _ => Err(Error::Fault),
        }
    }

    /// Whether it happens to a call of `function` with a handle of `gpu`.
    pub fn concerns(&self, function: &str, gpu: Option<u32>) -> bool {
        self.function.as_ref().is_none_or(|name| name == function)
            && (self.gpu.is_none() || self.gpu == gpu)
    }
}

/// The faults of a node as a process meets them: read when they change, and counted.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Option<(u64, Arc<[Watched]>)>>);

/// A fault, and how often this process has met it.
#[derive(Debug)]
pub struct Watched {
    /// The fault.
    pub fault: Fault,
    met: AtomicU64,
}

impl Watch {
    /// Nothing is read yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// The faults as they are now. Counting begins anew when they change.
    pub fn faults(&self, node: &Node) -> Result<Arc<[Watched]>, Error> {
        let generation = node.state.faults();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((of, faults)) if *of == generation => Ok(Arc::clone(faults)),
            _ => {
                let watched = |fault| Watched { fault, met: AtomicU64::new(0) };
                let faults: Arc<[Watched]> = node.faults()?.into_iter().map(watched).collect();
                *known = Some((generation, Arc::clone(&faults)));
                Ok(faults)
            }
        }
    }

    /// Comes back when the fault has ended.
    pub fn hang(&self, node: &Node, fault: &Fault) {
        while self.faults(node).is_ok_and(|now| now.iter().any(|other| other.fault == *fault)) {
            thread::sleep(HANG_CHECK);
        }
    }
}

impl Watched {
    /// Counts a call that the fault concerns, and says whether it happens to it.
    pub fn strikes(&self) -> bool {
        let before = self.met.fetch_add(1, Ordering::Relaxed);
        let first = self.fault.skip.unwrap_or(0);
        before >= first && self.fault.times.is_none_or(|times| before - first < times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_does_one_thing() {
        let parse = |text: &str| toml::from_str::<Fault>(text).unwrap().action();
        assert_eq!(parse("error = 'UNKNOWN'").unwrap(), Action::Fail(Code::UNKNOWN));
        assert_eq!(parse("delay_ms = 2000").unwrap(), Action::Delay(Duration::from_secs(2)));
        assert_eq!(parse("hang = true").unwrap(), Action::Hang);
        let code = Action::FailCuda(CudaCode::OUT_OF_MEMORY);
        assert_eq!(parse("cuda_error = 'OUT_OF_MEMORY'").unwrap(), code);
        assert!(parse("gpu = 1").is_err());
        assert!(parse("hang = true\nerror = 'UNKNOWN'").is_err());
        assert!(toml::from_str::<Fault>("error = 'SUCCESS'").is_err());
    }

    #[test]
    fn a_fault_concerns_its_gpu_and_function() {
        let lost = Fault::lost(1);
        assert!(lost.concerns("nvmlDeviceGetName", Some(1)));
        assert!(!lost.concerns("nvmlDeviceGetName", Some(0)));
        assert!(!lost.concerns("nvmlInit_v2", None));
        let init = Fault::new(None, Action::Hang).of("nvmlInit_v2");
        assert!(init.concerns("nvmlInit_v2", None));
        assert!(!init.concerns("nvmlShutdown", None));
    }
    #[test]
    fn a_fault_counts_the_calls() {
        let strikes = |fault: Fault| {
            let watched = Watched { fault, met: AtomicU64::new(0) };
            (0..4).map(|_| watched.strikes()).collect::<Vec<_>>()
        };
        assert_eq!(strikes(Fault::lost(0)), [true; 4]);
        assert_eq!(strikes(Fault::lost(0).at(2)), [false, true, false, false]);
        assert_eq!(strikes(Fault::lost(0).from(3)), [false, false, true, true]);
    }
}
