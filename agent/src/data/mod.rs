//! The data sockets: every connection goes to an executor of its peer before a byte is read.
//!
//! ```text
//!   creel.sock ────────▶ serve ──▶ Peer::of ──▶ route ──▶ executors: that device, that user
//!   gpu/<address>.sock ─▶ serve ──▶    "          "
//! ```
//!
//! - `route`: which device a connection is for.
//! - `doors`: the sockets of single GPUs.

mod doors;
mod route;

use std::io::ErrorKind;
use std::sync::Arc;

use creel_settings::Settings;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tracing::debug;

use self::route::{Client, Door, Target};
use crate::connections::Place;
use crate::executors::Executors;
use crate::gpus::Gpus;
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
    /// The node's settings.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// The turns to look at peers.
    pub looks: Looks,
}

/// Accepts connections on `creel.sock` and on the sockets of the GPUs, for ever.
pub async fn serve_all(socket: Socket, run_dir: RunDir, doorman: Doorman) {
    tokio::join!(serve(socket, Door::Any, doorman.clone()), doors::keep(run_dir, doorman));
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
        let lease = Vec::new();
        let client = Client {
            container: peer.container_id(),
            lease: &lease,
            unleased: self.settings.borrow().gpu_unleased,
        };
        match route::route(door, &client, &self.targets().await) {
            Ok(device) => self.executors.attach(stream, peer, place, &device),
            Err(refusal) => {
                self.executors.refuse(stream, peer.uid, refusal.code, refusal.reason);
            }
        }
    }

    /// The GPUs and slices that a client may be sent to; none while the driver doesn't answer.
    async fn targets(&self) -> Vec<Target> {
        let units = self.gpus.units().await.unwrap_or_default();
        let target = |unit: crate::gpus::Unit| Target {
            address: unit.address,
            uuid: unit.uuid,
            usable: unit.usable,
            holder: None,
            own: false,
        };
        units.into_iter().map(target).collect()
    }
}
