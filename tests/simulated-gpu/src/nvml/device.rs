//! GPUs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlComputeMode_t, nvmlDevice_t, nvmlEccCounterType_t, nvmlEnableState_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlMemoryErrorType_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
    nvmlTemperatureSensors_t, nvmlTemperatureThresholds_t, nvmlUtilization_t,
};

use super::output::{array, put, put_list, put_str};
use super::session::{Device, answer, answer_for, answer_handle};
use crate::topology::{ComputeMode, Gpu, PciAddress};
use crate::{Code, Node};

/// `NVML_VALUE_NOT_AVAILABLE` of an instance id.
const NO_INSTANCE: c_uint = c_uint::MAX;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    answer("nvmlDeviceGetCount_v2", |node| {
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(count, node.gpus.len() as c_uint) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer_handle("nvmlDeviceGetHandleByIndex_v2", device, |node| {
        node.gpus.get(index as usize).map(|_| index).ok_or(Code::INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer_handle("nvmlDeviceGetHandleByUUID", device, |node| {
        // SAFETY: the caller passes a string, or null.
        let uuid = unsafe { text(uuid)? };
        find(node, |gpu| gpu.uuid == uuid)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    id: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer_handle("nvmlDeviceGetHandleByPciBusId_v2", device, |node| {
        // SAFETY: the caller passes a string, or null.
        let id = unsafe { text(id)? };
        find(node, |gpu| gpu.pci.to_string().eq_ignore_ascii_case(id))
    })
}

fn find(node: &Node, wanted: impl Fn(&Gpu) -> bool) -> Result<u32, Code> {
    node.gpus.iter().position(wanted).map(|index| index as u32).ok_or(Code::NOT_FOUND)
}

/// # Safety
///
/// `text` is null, or a string that outlives the call.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Code> {
    if text.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: a string, by the contract.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_ARGUMENT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetName", device, |device| {
        let text = match device.slice {
            None => device.gpu.name.clone(),
            Some((_, slice)) => format!("{} MIG {}", device.gpu.name, slice.profile.name),
        };
        // SAFETY: the caller passes a buffer of that length, or null.
        unsafe { put_str(name, length, &text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetUUID", device, |device| {
        let text = match device.slice {
            None => device.gpu.uuid.clone(),
            Some((_, slice)) => device.gpu.slice_uuid(slice),
        };
        // SAFETY: the caller passes a buffer of that length, or null.
        unsafe { put_str(uuid, length, &text) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: *mut c_uint) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetIndex", device, |device| {
        let number = device.slice.map_or(device.index, |(number, _)| number);
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(index, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMinorNumber(
    device: nvmlDevice_t,
    minor: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMinorNumber", device, |device| {
        device.whole()?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(minor, device.gpu.minor) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    pci: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetPciInfo_v3", device, |device| {
        device.whole()?;
        let model = device.gpu.model;
        let ids = (model.pci_device, model.pci_subsystem);
        // SAFETY: the caller passes a pointer to the struct, or null.
        unsafe { put(pci, pci_info(device.gpu.pci, ids)) }
    })
}

/// The struct for a device of NVIDIA's.
pub(super) fn pci_info(address: PciAddress, (device, subsystem): (u16, u16)) -> nvmlPciInfo_t {
    let PciAddress { domain, bus, device: slot } = address;
    nvmlPciInfo_t {
        busIdLegacy: array(&format!("{domain:04X}:{bus:02X}:{slot:02X}.0")),
        domain,
        bus: u32::from(bus),
        device: u32::from(slot),
        pciDeviceId: u32::from(device) << 16 | 0x10de,
        pciSubSystemId: u32::from(subsystem) << 16 | 0x10de,
        busId: array(&address.to_string()),
    }
}

/// Total, reserved, used and free bytes of a GPU or slice.
fn memory(device: &Device<'_>) -> (u64, u64, u64, u64) {
    let claims = device.node.state.uses(device.index);
    let (total, reserved, used) = match device.slice {
        None => {
            let claimed: u64 = claims.iter().map(|claim| claim.bytes).sum();
            let used = device.node.state.used(device.index) + claimed;
            (device.gpu.memory, device.gpu.memory_reserved, used)
        }
        Some((number, slice)) => {
            let own = claims.iter().filter(|claim| claim.slice == Some(number));
            (slice.profile.memory_mib << 20, 0, own.map(|claim| claim.bytes).sum())
        }
    };
    let used = used.min(total - reserved);
    (total, reserved, used, total - reserved - used)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    info: *mut nvmlMemory_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMemoryInfo", device, |device| {
        // What is reserved counts as used here.
        let (total, _, _, free) = memory(device);
        let used = total - free;
        // SAFETY: the caller passes a pointer to the struct, or null.
        unsafe { put(info, nvmlMemory_t { total, free, used }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    info: *mut nvmlMemory_v2_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMemoryInfo_v2", device, |device| {
        let version = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;
        if info.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes the struct with its version filled in.
        if unsafe { (*info).version } != version {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let (total, reserved, used, free) = memory(device);
        // SAFETY: the caller passes a pointer to the struct.
        unsafe { put(info, nvmlMemory_v2_t { version, total, reserved, free, used }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeMode(
    device: nvmlDevice_t,
    mode: *mut nvmlComputeMode_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetComputeMode", device, |device| {
        device.whole()?;
        let number = match device.gpu.compute_mode {
            ComputeMode::Default => 0,
            ComputeMode::Prohibited => 2,
            ComputeMode::ExclusiveProcess => 3,
        };
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(mode, number) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetCudaComputeCapability", device, |device| {
        let (high, low) = device.gpu.model.compute_capability;
        // SAFETY: the caller passes pointers to numbers, or null.
        unsafe {
            put(major, high)?;
            put(minor, low)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetUtilizationRates", device, |device| {
        // Nor has a GPU with MIG on.
        if device.gpu.slices.is_some() {
            return Err(Code::NOT_SUPPORTED);
        }
        let (gpu, memory) = device.gpu.utilization;
        // SAFETY: the caller passes a pointer to the struct, or null.
        unsafe { put(rates, nvmlUtilization_t { gpu, memory }) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    temperature: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetTemperature", device, |device| {
        device.whole()?;
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(temperature, device.gpu.temperature) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureThreshold(
    device: nvmlDevice_t,
    threshold: nvmlTemperatureThresholds_t,
    temperature: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetTemperatureThreshold", device, |device| {
        device.whole()?;
        let (_, slowdown, shutdown) = device.gpu.model.temperature;
        let degrees = match threshold {
            0 => shutdown,
            1 => slowdown,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(temperature, degrees) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPowerUsage(
    device: nvmlDevice_t,
    power: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetPowerUsage", device, |device| {
        device.whole()?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(power, device.gpu.power * 1000) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(
    device: nvmlDevice_t,
    limit: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetEnforcedPowerLimit", device, |device| {
        device.whole()?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(limit, device.gpu.model.power_limit * 1000) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEccMode(
    device: nvmlDevice_t,
    current: *mut nvmlEnableState_t,
    pending: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetEccMode", device, |device| {
        device.whole()?;
        let state = u32::from(!device.gpu.ecc.off);
        // SAFETY: the caller passes pointers to numbers, or null.
        unsafe {
            put(current, state)?;
            put(pending, state)
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error: nvmlMemoryErrorType_t,
    _counter: nvmlEccCounterType_t,
    count: *mut c_ulonglong,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetTotalEccErrors", device, |device| {
        device.whole()?;
        let ecc = device.gpu.ecc;
        if ecc.off {
            return Err(Code::NOT_SUPPORTED);
        }
        let errors = if error == 0 { ecc.corrected } else { ecc.uncorrected };
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(count, errors) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    corrected: *mut c_uint,
    uncorrected: *mut c_uint,
    pending: *mut c_uint,
    failed: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetRemappedRows", device, |device| {
        device.whole()?;
        // Rows are remapped from Ampere on; older parts retire pages.
        if device.gpu.model.compute_capability < (8, 0) {
            return Err(Code::NOT_SUPPORTED);
        }
        let ecc = device.gpu.ecc;
        // SAFETY: the caller passes pointers to numbers, or null.
        unsafe {
            put(corrected, 0)?;
            put(uncorrected, ecc.remapped_rows)?;
            put(pending, u32::from(ecc.remap_pending))?;
            put(failed, u32::from(ecc.remap_failed))
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    device: nvmlDevice_t,
    size: c_uint,
    nodes: *mut c_ulong,
    _scope: c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetMemoryAffinity", device, |device| {
        let node = device.gpu.numa_node.ok_or(Code::NOT_SUPPORTED)?;
        if size == 0 {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        // SAFETY: the caller passes at least one word, or null.
        unsafe { put(nodes, 1 << node) }
    })
}

/// The processes of a GPU, or of one of its slices.
fn processes(device: &Device<'_>) -> Vec<nvmlProcessInfo_t> {
    let instances = |slice: Option<u32>| {
        let slices = device.gpu.slices.as_deref().unwrap_or_default();
        slice
            .and_then(|slice| slices.get(slice as usize))
            .map_or((NO_INSTANCE, NO_INSTANCE), |slice| {
                (slice.gpu_instance, slice.compute_instance)
            })
    };
    let uses = device.node.state.uses(device.index).into_iter();
    uses.filter(|claim| device.slice.is_none_or(|(number, _)| claim.slice == Some(number)))
        .map(|claim| {
            let (gpu_instance, compute_instance) = instances(claim.slice);
            nvmlProcessInfo_t {
                pid: claim.pid,
                usedGpuMemory: claim.bytes,
                gpuInstanceId: gpu_instance,
                computeInstanceId: compute_instance,
            }
        })
        .collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetComputeRunningProcesses_v3", device, |device| {
        // SAFETY: the caller passes a list and its length, or null.
        unsafe { put_list(count, infos, &processes(device)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetComputeRunningProcesses_v2", device, |device| {
        // SAFETY: the caller passes a list and its length, or null.
        unsafe { put_list(count, infos, &processes(device)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetGraphicsRunningProcesses_v3", device, |_| {
        // SAFETY: the caller passes a list and its length, or null.
        unsafe { put_list(count, infos, &[]) }
    })
}
