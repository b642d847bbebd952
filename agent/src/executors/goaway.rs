//! The last words on a connection whose executor is gone.

use std::os::fd::BorrowedFd;

use rustix::net::{SendFlags, Shutdown};
use tracing::debug;

/// Frame type SETTINGS (RFC 9113 §6.5).
const SETTINGS: u8 = 0x4;
/// Frame type GOAWAY (RFC 9113 §6.8).
const GOAWAY: u8 = 0x7;
/// Error code `INTERNAL_ERROR` (RFC 9113 §7).
const INTERNAL_ERROR: u32 = 0x2;
/// No stream of the client's has a higher number: each may have been worked on, so a client
/// must not quietly send it again.
const LAST_STREAM: u32 = i32::MAX as u32;
/// Enough for a reason; a frame carries 16 KiB at the most unless the client allows more.
const MAX_REASON_BYTES: usize = 1024;

/// Tells an HTTP/2 client why its connection ends, and ends it.
///
/// A client that was in the midst of a frame takes this for the rest of it, and sees only the
/// end. Never waits: where the socket is full, nothing is said.
pub(super) fn say(socket: BorrowedFd<'_>, reason: &str) {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if let Err(error) = rustix::net::send(socket, &frames(reason), flags) {
        debug!("a client was not told why its connection ends: {error}");
    }
    end(socket);
}

/// Ends a connection for all who hold it.
pub(super) fn end(socket: BorrowedFd<'_>) {
    // It fails where the client has closed it, which is as good.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// An empty SETTINGS frame, as a server's first frame must be one and the executor may have sent
/// none, and a GOAWAY frame with the reason as debug data.
fn frames(reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON_BYTES)];
    let mut bytes = frame_header(SETTINGS, 0).to_vec();
    bytes.extend(frame_header(GOAWAY, 8 + reason.len()));
    bytes.extend(LAST_STREAM.to_be_bytes());
    bytes.extend(INTERNAL_ERROR.to_be_bytes());
    bytes.extend(reason);
    bytes
}

/// Length (24 bits), type, flags, stream 0 (RFC 9113 §4.1).
fn frame_header(kind: u8, length: usize) -> [u8; 9] {
    let [.., a, b, c] = length.to_be_bytes();
    [a, b, c, kind, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_reason_arrives_and_then_the_end() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        say(ours.as_fd(), "why");
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[..9], [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[9..18], [0, 0, 11, 7, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[18..], *b"\x7f\xff\xff\xff\0\0\0\x02why");
    }

    #[test]
    fn a_full_socket_is_not_waited_for() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 4096]).is_ok() {}
        say(ours.as_fd(), "why");
        drop(theirs);
        say(ours.as_fd(), "why");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let bytes = frames(&"ü".repeat(5000));
        assert_eq!(bytes.len(), 26 + MAX_REASON_BYTES);
        assert!(std::str::from_utf8(&bytes[26..]).is_ok());
    }
}
