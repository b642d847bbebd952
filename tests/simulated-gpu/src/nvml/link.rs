//! `NVLink`.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlEnableState_t, nvmlIntNvLinkDeviceType_t, nvmlPciInfo_t, nvmlReturn_t,
};

use super::device::pci_info;
use super::output::put;
use super::session::{Device, answer_for};
use crate::Code;
use crate::model::NvLinkWiring;
use crate::topology::PciAddress;

/// PCI device id of an `NVSwitch`.
const SWITCH: u16 = 0x22a3;

/// Switches on a board.
const SWITCHES: u32 = 4;

/// What is at the other end of a link.
enum Remote<'node> {
    Nothing,
    Gpu(&'node crate::topology::Gpu),
    Switch(PciAddress),
}

fn remote<'node>(device: &Device<'node>, link: c_uint) -> Result<Remote<'node>, Code> {
    device.whole()?;
    let model = device.gpu.model;
    if model.nvlinks == 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if link >= model.nvlinks {
        return Err(Code::INVALID_ARGUMENT);
    }
    // Links join GPUs of one generation.
    let same = device.node.gpus.iter().enumerate().filter(|(index, gpu)| {
        *index != device.index as usize
            && gpu.model.nvlink_version == model.nvlink_version
            && gpu.nvlink == device.gpu.nvlink
    });
    let peers: Vec<_> = same.map(|(_, gpu)| gpu).collect();
    Ok(match device.gpu.nvlink {
        _ if peers.is_empty() => Remote::Nothing,
        NvLinkWiring::None => Remote::Nothing,
        NvLinkWiring::Mesh => Remote::Gpu(peers[link as usize % peers.len()]),
        NvLinkWiring::Switch => {
            let device = (link % SWITCHES) as u8;
            Remote::Switch(PciAddress { domain: 0, bus: 0xc0 + device, device: 0 })
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkState(
    device: nvmlDevice_t,
    link: c_uint,
    state: *mut nvmlEnableState_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetNvLinkState", device, |device| {
        let up = !matches!(remote(device, link)?, Remote::Nothing);
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(state, u32::from(up)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkVersion(
    device: nvmlDevice_t,
    link: c_uint,
    version: *mut c_uint,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetNvLinkVersion", device, |device| {
        remote(device, link)?;
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(version, device.gpu.model.nvlink_version) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: nvmlDevice_t,
    link: c_uint,
    pci: *mut nvmlPciInfo_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetNvLinkRemotePciInfo_v2", device, |device| {
        let info = match remote(device, link)? {
            Remote::Nothing => return Err(Code::NOT_SUPPORTED),
            Remote::Gpu(gpu) => pci_info(gpu.pci, (gpu.model.pci_device, gpu.model.pci_subsystem)),
            Remote::Switch(address) => pci_info(address, (SWITCH, SWITCH)),
        };
        // SAFETY: the caller passes a pointer to the struct, or null.
        unsafe { put(pci, info) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetNvLinkRemoteDeviceType(
    device: nvmlDevice_t,
    link: c_uint,
    kind: *mut nvmlIntNvLinkDeviceType_t,
) -> nvmlReturn_t {
    answer_for("nvmlDeviceGetNvLinkRemoteDeviceType", device, |device| {
        let number = match remote(device, link)? {
            Remote::Nothing => return Err(Code::NOT_SUPPORTED),
            Remote::Gpu(_) => 0,
            Remote::Switch(_) => 2,
        };
        // SAFETY: the caller passes a pointer to a number, or null.
        unsafe { put(kind, number) }
    })
}
