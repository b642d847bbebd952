//! The data sockets: every connection goes to an executor of its peer before a byte is read.
//!
//! ```text
//!   creel.sock ────────▶ serve ──▶ Peer::of ──▶ route ──▶ executors: that device, that user
//!   gpu/<address>.sock ─▶ serve ──▶    "          "
//! ```
//!
//! - `route`: which device a connection is for.
//! - `doors`: the sockets of single GPUs.
//! - `vacate`: executors leave a GPU that is somebody else's.

mod doors;
mod route;
mod vacate;

use std::io::ErrorKind;
use std::sync::Arc;

use creel_settings::{Settings, Unleased};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::debug;

use self::route::{Client, Door, Target};
use crate::connections::Place;
use crate::executors::{Device, Executors};
use crate::gpus::Gpus;
use crate::leases::{Lease, Leases};
use crate::peer::{Looks, Peer, Proc};
use crate::run_dir::RunDir;
use crate::socket::Socket;

/// Who lets connections in; clones share all.
#[derive(Clone, Debug)]
pub struct Doorman {
    /// Where they go.
    pub executors: Arc<Executors>,
    /// What there is to compute on.
    pub gpus: Gpus,
    /// Who holds it.
    pub leases: Leases,
    /// The node's settings.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// The turns to look at peers.
    pub looks: Looks,
}

/// Accepts connections on `creel.sock` and on the sockets of the GPUs, for ever.
pub async fn serve_all(socket: Socket, run_dir: RunDir, doorman: Doorman) {
    let vacating = vacate::follow(doorman.leases.clone(), Arc::clone(&doorman.executors));
    let serving = serve(socket, Door::Any, doorman.clone());
    tokio::join!(serving, doors::keep(run_dir, doorman), vacating);
}

/// Accepts connections on one socket and hands them over, for ever.
async fn serve(socket: Socket, door: Door, doorman: Doorman) {
    let proc = Proc::default();
    loop {
        let stream = socket.accept().await;
        let Ok(credentials) = stream.peer_cred() else { continue };
        let uid = credentials.uid();
        let Some((stream, place)) = doorman.executors.enter(stream, uid) else { continue };
        let (doorman, proc) = (doorman.clone(), proc.clone());
        tokio::spawn(async move {
            match Peer::of(&stream, &proc, &doorman.looks).await {
                Ok(peer) => doorman.let_in(door, stream, peer, place).await,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    debug!("a connection is dropped: {error}");
                }
                Err(error) => doorman.executors.refuse_unknown(stream, uid, &error),
            }
        });
    }
}

impl Doorman {
    async fn let_in(&self, door: Door, stream: UnixStream, peer: Peer, place: Place) {
        let lease = self.leases.of(&peer);
        let devices: Vec<String> = lease.iter().flat_map(Lease::uuids).map(str::to_owned).collect();
        let unleased = match peer.container {
            // It may be in one.
            Err(_) => Unleased::Deny,
            Ok(_) => self.settings.borrow().gpu_unleased,
        };
        let client = Client { container: peer.container_id(), lease: &devices, unleased };
        match route::route(door, &client, &self.targets(lease.as_ref()).await) {
            Ok(device) => {
                self.executors.attach(stream, peer, place, &device);
                self.leave_to_holder(&device);
            }
            Err(refusal) => {
                self.executors.refuse(stream, peer.uid, refusal.code, refusal.reason);
            }
        }
    }

    /// The GPUs and slices that a client may be sent to; none while the driver doesn't answer.
    async fn targets(&self, own: Option<&Lease>) -> Vec<Target> {
        let units = self.gpus.units().await.unwrap_or_default();
        let leases = self.leases.all();
        let target = |unit: crate::gpus::Unit| {
            let holds = |lease: &Lease| unit.uuid.as_deref().is_some_and(|uuid| lease.holds(uuid));
            Target {
                holder: leases.iter().find(|lease| holds(lease)).map(ToString::to_string),
                own: own.is_some_and(holds),
                address: unit.address,
                usable: unit.usable,
                uuid: unit.uuid,
            }
        };
        units.into_iter().map(target).collect()
    }

    /// A lease may have been given while a connection was on its way to the same device.
    fn leave_to_holder(&self, device: &Device) {
        let Device::Gpu(uuid) = device else { return };
        if let Some(lease) = self.leases.on(uuid) {
            let reason = format!("{uuid} is held by {lease} now");
            self.executors.end_on(device, Some(lease.holder.uid), &reason);
        }
    }
}
