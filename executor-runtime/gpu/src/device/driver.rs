//! The driver, and the devices that it shows.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use cudarc::driver::{result, sys};

use super::error::Named;
use super::{Context, DeviceError};

/// CUDA 12.0: what loads PTX 8.0.
const NEEDED: i32 = 12_000;

/// The driver of this process, started.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: i32,
}

impl Driver {
    /// Loads and starts it.
    pub fn start() -> Result<Self, DeviceError> {
        // SAFETY: it only opens libraries; what NVIDIA's does when it is loaded is its own matter.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoDriver);
        }
        let mut version: c_int = 0;
        // SAFETY: the function writes an int.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }.named("cuDriverGetVersion")?;
        if version < NEEDED {
            return Err(DeviceError::OldDriver { version });
        }
        result::init().named("cuInit")?;
        Ok(Driver { version })
    }

    /// The newest CUDA that it knows: 12040 is 12.4.
    pub fn version(self) -> i32 {
        self.version
    }

    /// The devices that the process sees, in CUDA's order.
    pub fn devices(self) -> Result<Vec<Device>, DeviceError> {
        let count = result::device::get_count().named("cuDeviceGetCount")?;
        (0..count).map(Device::read).collect()
    }

    /// The device of a UUID: `GPU-…`, or `MIG-…` for a slice.
    pub fn device(self, uuid: &str) -> Result<Device, DeviceError> {
        let devices = self.devices()?;
        let wanted = uuid.trim_start_matches("MIG-").trim_start_matches("GPU-").to_lowercase();
        devices.iter().find(|device| device.uuid == wanted).cloned().ok_or_else(|| {
            let seen = devices.into_iter().map(|device| device.uuid).collect();
            DeviceError::NoDevice { uuid: uuid.to_owned(), seen }
        })
    }
}

/// A device, or the slice of one that the process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub(super) handle: sys::CUdevice,
    /// Without `GPU-` or `MIG-`: CUDA doesn't say which it is.
    pub uuid: String,
    /// The product's name.
    pub name: String,
    /// Its memory, in bytes.
    pub memory: u64,
    /// Compute capability, such as (9, 0).
    pub capability: (u32, u32),
    /// Multiprocessors: how many blocks are worth having is a multiple of it.
    pub multiprocessors: u32,
    /// Shared memory that a block may have without asking, in bytes.
    pub shared_memory: u32,
    /// Whether it has pools of its own (`cuMemAllocAsync`).
    pub has_memory_pools: bool,
}

impl Device {
    fn read(ordinal: c_int) -> Result<Self, DeviceError> {
        use sys::CUdevice_attribute as Attribute;
        let handle = result::device::get(ordinal).named("cuDeviceGet")?;
        let attribute = |attribute| {
            // SAFETY: the handle is the driver's.
            unsafe { result::device::get_attribute(handle, attribute) }
                .named("cuDeviceGetAttribute")
                .map(c_int::cast_unsigned)
        };
        Ok(Device {
            handle,
            uuid: uuid(handle)?,
            name: result::device::get_name(handle).named("cuDeviceGetName")?,
            // SAFETY: the handle is the driver's.
            memory: unsafe { result::device::total_mem(handle) }.named("cuDeviceTotalMem")? as u64,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            has_memory_pools: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?
                != 0,
        })
    }

    /// Its primary context, made if nobody in the process has it.
    pub fn open(&self) -> Result<std::sync::Arc<Context>, DeviceError> {
        Context::new(self.clone())
    }
}

/// Of a slice its own, which the older function doesn't say.
fn uuid(handle: sys::CUdevice) -> Result<String, DeviceError> {
    let mut uuid = MaybeUninit::<sys::CUuuid>::uninit();
    // SAFETY: the function writes 16 bytes there when it succeeds.
    let uuid = unsafe {
        sys::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), handle).named("cuDeviceGetUuid_v2")?;
        uuid.assume_init()
    };
    let mut text = String::with_capacity(36);
    for (place, byte) in uuid.bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let byte = c_uint::from(*byte as u8);
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(digit, 16));
        }
    }
    Ok(text)
}
