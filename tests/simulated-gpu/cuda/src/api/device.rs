//! Devices.

use std::ffi::{c_char, c_int};

use simulated_nvml::CudaCode;

use super::{Buffer, Out, Text};
use crate::driver::{call, call_device};

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> u32 {
    call("cuDeviceGetCount", |driver| count.set(driver.devices.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> u32 {
    call("cuDeviceGet", |driver| {
        driver.device(ordinal)?;
        device.set(ordinal)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Buffer, length: c_int, device: c_int) -> u32 {
    call_device("cuDeviceGetName", device, |_, device| name.set(length, &device.name))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<[c_char; 16]>, device: c_int) -> u32 {
    call_device("cuDeviceGetUuid", device, |_, device| uuid.set(bytes(&device.uuid)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[c_char; 16]>, device: c_int) -> u32 {
    call_device("cuDeviceGetUuid_v2", device, |_, device| uuid.set(bytes(&device.uuid)))
}

/// The bytes of a UUID in hexadecimal digits, behind its kind.
fn bytes(uuid: &str) -> [c_char; 16] {
    let digits: Vec<u32> = uuid[4..].chars().filter_map(|digit| digit.to_digit(16)).collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = ((pair[0] << 4 | pair[1]) as u8) as c_char;
    }
    bytes
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> u32 {
    call_device("cuDeviceTotalMem_v2", device, |_, device| bytes.set(device.memory as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> u32 {
    call_device("cuDeviceGetAttribute", device, |_, device| value.set(device.attribute(attribute)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceComputeCapability(
    major: Out<c_int>,
    minor: Out<c_int>,
    device: c_int,
) -> u32 {
    call_device("cuDeviceComputeCapability", device, |_, device| {
        major.set(device.capability.0)?;
        minor.set(device.capability.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(id: Buffer, length: c_int, device: c_int) -> u32 {
    call_device("cuDeviceGetPCIBusId", device, |_, device| id.set(length, &bus_id(device.pci)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetByPCIBusId(device: Out<c_int>, id: Text) -> u32 {
    call("cuDeviceGetByPCIBusId", |driver| {
        let id = id.get()?;
        let mut all = driver.devices.iter();
        let found = all.position(|device| bus_id(device.pci).eq_ignore_ascii_case(id));
        device.set(found.ok_or(CudaCode::INVALID_DEVICE)? as c_int)
    })
}

fn bus_id(pci: simulated_nvml::topology::PciAddress) -> String {
    format!("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> u32 {
    call_device("cuDeviceCanAccessPeer", device, |driver, _| {
        driver.device(peer)?;
        can.set(0)
    })
}
