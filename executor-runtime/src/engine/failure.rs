//! What the engine's errors in a running query are to its client.

use std::any::Any;
use std::error::Error;
use std::io;

use datafusion::error::DataFusionError;
use datafusion::physical_plan::ExecutionPlan;

use super::Engine;
use super::files::name_files;
use crate::error::ExecutorError;
use crate::gpu::GpuError;

/// The option that DataFusion names when a query spills more than is allowed; only its text tells
/// that error from others.
const SPILL_OPTION: &str = "datafusion.runtime.max_temp_directory_size";

/// The error of a query, with what the engine's own words lack: which file, which setting.
pub fn of_query(
    error: DataFusionError,
    plan: &dyn ExecutionPlan,
    engine: &Engine,
) -> ExecutorError {
    if let Some(reason) = gpu_failure(&error) {
        return ExecutorError::Ending(reason);
    }
    if error.to_string().contains(SPILL_OPTION) {
        return ExecutorError::SpillLimit(engine.spill_limit());
    }
    if is_full(&error) {
        return ExecutorError::SpillFull(engine.spill_dir().to_owned());
    }
    ExecutorError::Engine(name_files(error, plan))
}

/// What a panic says.
pub fn of_panic(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

/// What became of the GPU, if the query failed because no call of the driver works any more.
fn gpu_failure(error: &DataFusionError) -> Option<String> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<GpuError>() {
            Some(error) if error.is_final() => return Some(format!("its GPU failed: {error}")),
            _ => next = error.source(),
        }
    }
    None
}

/// Whether a disk is full. A query writes nothing but its spill files.
fn is_full(error: &DataFusionError) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)) {
            return true;
        }
        next = error.source();
    }
    // Some errors keep but the text of what they came from (strerror(3) of ENOSPC).
    error.to_string().contains("No space left on device")
}

#[cfg(test)]
mod tests {
    use super::*;
    use creel_gpu::device::DeviceError;
    use datafusion::arrow::error::ArrowError;

    #[test]
    fn a_gpu_that_failed_is_seen_through_what_wraps_it() {
        let call = |code| {
            GpuError::from(DeviceError::Call {
                call: "cuStreamSynchronize".to_owned(),
                code,
                name: "CUDA_ERROR".to_owned(),
                reason: "as the driver says".to_owned(),
            })
        };
        let illegal_address = DataFusionError::from(call(700));
        let reason = gpu_failure(&illegal_address.context("a partition")).unwrap();
        assert!(reason.starts_with("its GPU failed: cuStreamSynchronize failed"), "{reason}");
        assert_eq!(gpu_failure(&DataFusionError::from(call(1))), None);
    }

    #[test]
    fn a_full_disk_is_seen_through_what_wraps_it() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert!(is_full(&DataFusionError::IoError(full())));
        assert!(is_full(&DataFusionError::IoError(full()).context("spilling")));
        let arrow = ArrowError::IoError("writing".to_owned(), full());
        assert!(is_full(&DataFusionError::ArrowError(Box::new(arrow), None)));
        assert!(!is_full(&DataFusionError::IoError(io::ErrorKind::NotFound.into())));
    }
}
