//! A channel of messages and descriptors over a Unix stream socket.
//!
//! A message is its length (4 bytes, little endian) and its JSON. A descriptor travels as
//! ancillary data (`SCM_RIGHTS`, unix(7)) of its message's first byte, so descriptors arrive in
//! the order of their messages, and never after them.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// A message longer than this is refused: it can't come from the other half of Creel.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// What can go wrong on a channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The socket failed, or the other side is gone.
    #[error("the channel between agent and executor failed: {0}")]
    Io(#[from] io::Error),
    /// The other side sent what is no message: the two are of different versions.
    #[error("the channel between agent and executor carried no message of this version: {0}")]
    Message(#[from] serde_json::Error),
    /// The other side announced a message of an impossible length.
    #[error("the channel between agent and executor announced a message of {0} bytes")]
    Length(usize),
}

/// Makes both ends of a channel: one for the agent, one to be an executor's standard input.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Makes the two halves of one end of a channel. Needs a Tokio runtime.
pub fn open(end: OwnedFd) -> io::Result<(Sender, Receiver)> {
    let stream = std::os::unix::net::UnixStream::from(end);
    stream.set_nonblocking(true)?;
    let stream = Arc::new(UnixStream::from_std(stream)?);
    let sender = Sender { stream: Arc::clone(&stream), writing: Arc::default() };
    let receiver = Receiver { stream, bytes: Vec::new(), descriptors: VecDeque::new() };
    Ok((sender, receiver))
}

/// The sending half; clones share the socket, and their messages never mix.
#[derive(Clone, Debug)]
pub struct Sender {
    stream: Arc<UnixStream>,
    writing: Arc<Mutex<()>>,
}

impl Sender {
    /// Sends a message, and a descriptor with it. The descriptor is duplicated, the caller's
    /// stays open.
    ///
    /// Not safe to cancel: a future that is dropped midway leaves half a message behind.
    pub async fn send(
        &self,
        message: &impl Serialize,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), ChannelError> {
        let json = serde_json::to_vec(message)?;
        let length = u32::try_from(json.len()).map_err(|_| ChannelError::Length(json.len()))?;
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(json);

        let _turn = self.writing.lock().await;
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let with = descriptor.filter(|_| sent == 0);
            sent += self
                .stream
                .async_io(Interest::WRITABLE, || send_some(&self.stream, rest, with))
                .await?;
        }
        Ok(())
    }
}

fn send_some(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, flags)?)
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    stream: Arc<UnixStream>,
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Receiver {
    /// Waits for the next message; `None` when the other side is gone. Safe to cancel.
    pub async fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, ChannelError> {
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(serde_json::from_slice(&message)?));
            }
            let (stream, bytes, descriptors) =
                (&self.stream, &mut self.bytes, &mut self.descriptors);
            let read = stream
                .async_io(Interest::READABLE, || receive_some(stream, bytes, descriptors))
                .await;
            match read {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // The other side died with something of ours unread.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The descriptor that came with the message received last.
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop_front()
    }

    fn take_message(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_MESSAGE_BYTES {
            return Err(ChannelError::Length(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = rest[..length].to_vec();
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

fn receive_some(
    stream: &UnixStream,
    bytes: &mut Vec<u8>,
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut buffer = [0; 8 << 10];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        stream.as_fd(),
        &mut [IoSliceMut::new(&mut buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    bytes.extend_from_slice(&buffer[..received.bytes]);
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::message::{Attach, FromExecutor, ToExecutor};

    fn attach(attachment: u64) -> ToExecutor {
        ToExecutor::Attach(Attach { attachment, pid: 1, uid: 2, cwd: None, container: None })
    }

    #[tokio::test]
    async fn descriptors_arrive_with_their_messages() {
        let (one, other) = pair().unwrap();
        let (sender, _keep) = open(one).unwrap();
        let (_keep, mut receiver) = open(other).unwrap();
        let mut ours = Vec::new();
        for number in 0..20 {
            let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            sender.send(&attach(number), Some(theirs.as_fd())).await.unwrap();
            sender.send(&ToExecutor::Report { token: number }, None).await.unwrap();
            ours.push(mine);
        }
        for (number, mut mine) in ours.into_iter().enumerate() {
            let message: ToExecutor = receiver.receive().await.unwrap().unwrap();
            assert_eq!(message, attach(number as u64));
            let theirs = receiver.descriptor().expect("a descriptor");
            std::os::unix::net::UnixStream::from(theirs).write_all(&[number as u8]).unwrap();
            let mut byte = [0];
            mine.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0] as usize, number);
            let message: ToExecutor = receiver.receive().await.unwrap().unwrap();
            assert_eq!(message, ToExecutor::Report { token: number as u64 });
        }
        drop(sender);
    }

    #[tokio::test]
    async fn a_message_larger_than_the_socket_buffer_arrives_whole() {
        let (one, other) = pair().unwrap();
        let (sender, _keep) = open(one).unwrap();
        let (_keep, mut receiver) = open(other).unwrap();
        let reason = "x".repeat(5 << 20);
        let sent = FromExecutor::Failed { reason };
        let (outcome, arrived) =
            tokio::join!(sender.send(&sent, None), receiver.receive::<FromExecutor>());
        outcome.unwrap();
        assert_eq!(arrived.unwrap(), Some(sent));
    }

    #[tokio::test]
    async fn the_other_side_gone_is_the_end() {
        let (one, other) = pair().unwrap();
        let (_keep, mut receiver) = open(other).unwrap();
        drop(one);
        assert!(receiver.receive::<FromExecutor>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_no_message_is_an_error() {
        let (one, other) = pair().unwrap();
        let (_keep, mut receiver) = open(other).unwrap();
        let mut raw = std::os::unix::net::UnixStream::from(one);
        raw.write_all(&u32::MAX.to_le_bytes()).unwrap();
        let error = receiver.receive::<FromExecutor>().await.unwrap_err();
        assert!(matches!(error, ChannelError::Length(_)), "{error}");
    }
}
