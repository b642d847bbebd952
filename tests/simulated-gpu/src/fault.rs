//! What can be wrong with a node: calls that fail, take long, or never come back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Code, Error};

/// Something that happens to calls into the library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The function that it happens to, as `nvmlDeviceGetName`; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The GPU that it happens to, by its NVML index: calls with that GPU's handle or with that of
    /// one of its slices. Absent: all calls, those that are about no GPU included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The call fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Code>,
    /// The call takes this long, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// The call doesn't come back for as long as the fault lasts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hang: bool,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It fails.
    Fail(Code),
    /// It takes this long.
    Delay(Duration),
    /// It doesn't come back.
    Hang,
}

impl Fault {
    /// A fault of all calls on one GPU, or of all calls.
    pub fn new(gpu: Option<u32>, action: Action) -> Self {
        let mut fault = Self { function: None, gpu, error: None, delay_ms: None, hang: false };
        match action {
            Action::Fail(code) => fault.error = Some(code),
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

    /// What it does; an error if that is nothing, or two things.
    pub fn action(&self) -> Result<Action, Error> {
        match (self.error, self.delay_ms, self.hang) {
            (Some(code), None, false) => Ok(Action::Fail(code)),
            (None, Some(delay), false) => Ok(Action::Delay(Duration::from_millis(delay))),
            (None, None, true) => Ok(Action::Hang),
            _ => Err(Error::Fault),
        }
    }

    /// Whether it happens to a call of `function` with a handle of `gpu`.
    pub fn concerns(&self, function: &str, gpu: Option<u32>) -> bool {
        self.function.as_ref().is_none_or(|name| name == function)
            && (self.gpu.is_none() || self.gpu == gpu)
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
}
