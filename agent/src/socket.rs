//! The agent's Unix sockets.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use crate::error::Error;

/// A listening socket that anyone local may connect to; its file goes when it is dropped.
///
/// Who connects is known from the kernel, so its mode (0666) gives away nothing.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Listens on a path. What lies there is taken away first: whoever calls holds the run
    /// directory's lock, so it is of an agent that is gone.
    pub fn bind(path: PathBuf) -> Result<Self, Error> {
        let listen = |path: &Path| {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        match listen(&path) {
            Ok(listener) => Ok(Self { listener, path }),
            Err(source) => Err(Error::Listen { path, source }),
        }
    }

    /// Waits for the next connection. An agent out of descriptors waits for some to come free.
    pub async fn accept(&self) -> UnixStream {
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    warn!("{} could not accept a connection: {error}", self.path.display());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_anyone_may_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = Socket::bind(path.clone()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_directory_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        std::fs::create_dir(&path).unwrap();
        assert!(matches!(Socket::bind(path), Err(Error::Listen { .. })));
    }
}
