//! The data socket: every connection goes to the executor of its peer before a byte is read.

use std::io::ErrorKind;
use std::sync::Arc;

use tracing::debug;

use crate::executors::Executors;
use crate::peer::{Looks, Peer, Proc};
use crate::socket::Socket;

/// Accepts connections and hands them over, for ever.
pub async fn serve(socket: Socket, executors: Arc<Executors>, looks: Looks) {
    let proc = Proc::default();
    loop {
        let stream = socket.accept().await;
        let Ok(credentials) = stream.peer_cred() else { continue };
        let Some((stream, place)) = executors.enter(stream, credentials.uid()) else { continue };
        let (executors, proc, looks) = (Arc::clone(&executors), proc.clone(), looks.clone());
        tokio::spawn(async move {
            match Peer::of(&stream, &proc, &looks).await {
                Ok(peer) => executors.attach(stream, peer, place),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    debug!("a connection is dropped: {error}");
                }
                Err(error) => executors.refuse_unknown(stream, credentials.uid(), &error),
            }
        });
    }
}
