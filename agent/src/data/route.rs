//! Which device a connection is for.

use creel_settings::Unleased;
use tonic::Code;

use crate::executors::Device;

/// The socket that a client came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// `creel.sock`: the agent chooses.
    Any,
    /// `gpu/<address>.sock`: that GPU or slice.
    Gpu(u32),
}

/// A GPU or slice, as a client may be sent to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Its address, as Spark is told.
    pub(super) address: u32,
    /// Absent: the driver doesn't say, so nobody can be sent to it.
    pub(super) uuid: Option<String>,
    /// Whether it is fit for use.
    pub(super) usable: bool,
    /// Who holds it, in words; absent: nobody.
    pub(super) holder: Option<String>,
    /// Whether that is the client itself.
    pub(super) own: bool,
}

/// Who comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client<'a> {
    /// The YARN container that it is in.
    pub(super) container: Option<&'a str>,
    /// The devices of its lease, in the lease's order; empty without one.
    pub(super) lease: &'a [String],
    /// Whether who is in no container may use what nobody holds.
    pub(super) unleased: Unleased,
}

/// Why a client may not go where it wants to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    pub(super) reason: String,
}

/// The device that a client is sent to.
///
/// By `creel.sock`: the first of its lease; else, where that is allowed, one that nobody holds;
/// else the processor. By a GPU's own socket: that GPU, if it is the client's or nobody's and
/// that is allowed.
pub(super) fn route(door: Door, client: &Client<'_>, gpus: &[Target]) -> Result<Device, Refusal> {
    match door {
        Door::Any => Ok(any(client, gpus)),
        Door::Gpu(address) => one(address, client, gpus),
    }
}

fn any(client: &Client<'_>, gpus: &[Target]) -> Device {
    if let Some(uuid) = client.lease.first() {
        return Device::Gpu(uuid.clone());
    }
    let free = gpus.iter().find(|gpu| gpu.usable && gpu.holder.is_none() && gpu.uuid.is_some());
    match free.and_then(|gpu| gpu.uuid.clone()) {
        Some(uuid) if may_borrow(client) => Device::Gpu(uuid),
        _ => Device::Cpu,
    }
}

fn one(address: u32, client: &Client<'_>, gpus: &[Target]) -> Result<Device, Refusal> {
    let refusal = |code, reason| Err(Refusal { code, reason });
    let gpu = gpus.iter().find(|gpu| gpu.address == address);
    let Some((gpu, uuid)) = gpu.and_then(|gpu| Some((gpu, gpu.uuid.clone()?))) else {
        let reason = format!("the node has no GPU {address} now: see `creel gpus`");
        return refusal(Code::NotFound, reason);
    };
    if gpu.own {
        return Ok(Device::Gpu(uuid));
    }
    if let Some(holder) = &gpu.holder {
        let reason = format!("GPU {address} ({uuid}) is held by {holder}{}", instead(client));
        return refusal(Code::PermissionDenied, reason);
    }
    if !may_borrow(client) {
        let why = match client.container {
            Some(container) => format!("container {container} has no lease on GPU {address}"),
            None => format!("nobody holds GPU {address}, and gpu.unleased is deny"),
        };
        let reason = format!("{why} ({uuid}){}", instead(client));
        return refusal(Code::PermissionDenied, reason);
    }
    if !gpu.usable {
        let reason = format!("GPU {address} ({uuid}) is unfit for use: see `creel gpus`");
        return refusal(Code::Unavailable, reason);
    }
    Ok(Device::Gpu(uuid))
}

/// What a client that is sent away may do.
fn instead(client: &Client<'_>) -> String {
    match (client.lease, client.container) {
        ([], Some(_)) => ": getGpusResources.sh asks for the container's GPUs".to_owned(),
        ([], None) => ": `creel run --gpus 1 -- COMMAND` takes one that is free".to_owned(),
        (own, _) => format!(": this client's lease is on {}", own.join(", ")),
    }
}

/// A container's GPUs are those that YARN counted, never some besides.
fn may_borrow(client: &Client<'_>) -> bool {
    client.unleased == Unleased::Allow && client.container.is_none() && client.lease.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Vec<Target> {
        let gpu = |address: u32, holder: Option<&str>| Target {
            address,
            uuid: Some(format!("GPU-{address}")),
            usable: true,
            holder: holder.map(str::to_owned),
            own: false,
        };
        vec![
            gpu(0, Some("container c1 of user 7")),
            Target { usable: false, ..gpu(1, None) },
            Target { own: true, ..gpu(2, Some("container c2 of user 7")) },
            gpu(3, None),
            Target { uuid: None, ..gpu(4, None) },
        ]
    }

    const NOBODY: Client<'static> =
        Client { container: None, lease: &[], unleased: Unleased::Deny };

    fn gpu(uuid: &str) -> Device {
        Device::Gpu(uuid.to_owned())
    }

    fn refused(door: Door, client: &Client<'_>, gpus: &[Target]) -> (Code, String) {
        let refusal = route(door, client, gpus).unwrap_err();
        (refusal.code, refusal.reason)
    }

    #[test]
    fn a_lease_comes_first() {
        let lease = ["GPU-2".to_owned()];
        let holder = Client { container: Some("c2"), lease: &lease, ..NOBODY };
        assert_eq!(route(Door::Any, &holder, &gpus()), Ok(gpu("GPU-2")));
        assert_eq!(route(Door::Gpu(2), &holder, &gpus()), Ok(gpu("GPU-2")));
        let (code, reason) = refused(Door::Gpu(0), &holder, &gpus());
        assert_eq!(code, Code::PermissionDenied);
        assert!(reason.contains("held by container c1 of user 7"), "{reason}");
        assert!(reason.ends_with("lease is on GPU-2"), "{reason}");
        let (code, _) = refused(Door::Gpu(3), &holder, &gpus());
        assert_eq!(code, Code::PermissionDenied);
    }

    #[test]
    fn without_a_lease_it_is_the_processor_and_no_gpu() {
        for client in [&NOBODY, &Client { container: Some("c3"), ..NOBODY }] {
            assert_eq!(route(Door::Any, client, &gpus()), Ok(Device::Cpu));
            for address in 0..4 {
                let (code, _) =
                    refused(Door::Gpu(address), client, &[&gpus()[..2], &gpus()[3..]].concat());
                let expected = if address == 2 { Code::NotFound } else { Code::PermissionDenied };
                assert_eq!(code, expected, "{address}");
            }
        }
    }

    #[test]
    fn what_nobody_holds_may_be_borrowed_where_that_is_allowed_and_by_no_container() {
        let client = Client { unleased: Unleased::Allow, ..NOBODY };
        assert_eq!(route(Door::Any, &client, &gpus()), Ok(gpu("GPU-3")));
        assert_eq!(route(Door::Gpu(3), &client, &gpus()), Ok(gpu("GPU-3")));
        assert_eq!(route(Door::Any, &client, &gpus()[..2]), Ok(Device::Cpu));
        assert_eq!(refused(Door::Gpu(0), &client, &gpus()).0, Code::PermissionDenied);
        assert_eq!(refused(Door::Gpu(1), &client, &gpus()).0, Code::Unavailable);
        let contained = Client { container: Some("c3"), ..client };
        assert_eq!(route(Door::Any, &contained, &gpus()), Ok(Device::Cpu));
    }

    #[test]
    fn a_gpu_that_is_not_there() {
        assert_eq!(refused(Door::Gpu(4), &NOBODY, &gpus()).0, Code::NotFound);
        assert_eq!(refused(Door::Gpu(9), &NOBODY, &gpus()).0, Code::NotFound);
    }
}
