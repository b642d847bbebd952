//! The sockets of single GPUs, `gpu/<address>.sock`: one for each GPU and slice that there is.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;

use tracing::warn;

use super::Doorman;
use super::route::Door;
use crate::run_dir::RunDir;
use crate::socket::Socket;

/// Opens and closes the sockets as GPUs and slices come and go, for ever.
pub(super) async fn keep(run_dir: RunDir, doorman: Doorman) {
    let mut looked = doorman.gpus.looked();
    let mut open = BTreeMap::new();
    sweep(&run_dir);
    loop {
        follow(&mut open, &addresses(&doorman).await, &run_dir, &doorman);
        tokio::select! {
            more = looked.next() => if !more { return },
            () = serve(&mut open) => {}
        }
    }
}

async fn addresses(doorman: &Doorman) -> Vec<u32> {
    // Without an answer of the driver there is nothing to open.
    doorman.gpus.units().await.unwrap_or_default().iter().map(|unit| unit.address).collect()
}

fn follow(
    open: &mut BTreeMap<u32, Serving>,
    addresses: &[u32],
    run_dir: &RunDir,
    doorman: &Doorman,
) {
    open.retain(|address, _| addresses.contains(address));
    for address in addresses {
        if open.contains_key(address) {
            continue;
        }
        let path = run_dir.gpu_socket(*address);
        let socket = path
            .parent()
            .map_or(Ok(()), make)
            .map_err(|error| error.to_string())
            .and_then(|()| Socket::bind(path.clone()).map_err(|error| error.to_string()));
        match socket {
            Ok(socket) => {
                let door = Door::Gpu(*address);
                open.insert(*address, Box::pin(super::serve(socket, door, doorman.clone())));
            }
            Err(error) => warn!("no socket for GPU {address}: {error}"),
        }
    }
}

/// Removes the sockets of an earlier agent: of a GPU that is gone nobody else would.
fn sweep(run_dir: &RunDir) {
    let any = run_dir.gpu_socket(0);
    let entries = any.parent().and_then(|directory| fs::read_dir(directory).ok());
    for entry in entries.into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "sock") {
            // What can't be removed is reported when its socket is opened.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A socket that is served. Not in a task of its own: what is dropped here is gone at once, and
/// its file with it.
type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Serves them all, for ever.
async fn serve(open: &mut BTreeMap<u32, Serving>) {
    poll_fn(|context| {
        for serving in open.values_mut() {
            let _ = serving.as_mut().poll(context);
        }
        Poll::<()>::Pending
    })
    .await;
}

fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Whatever the umask.
        made => made.and_then(|()| fs::set_permissions(directory, Permissions::from_mode(0o755))),
    }
}
