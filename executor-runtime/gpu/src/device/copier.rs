//! Copies of any length between the host and the device, through slabs of pinned memory.
//!
//! ```text
//!   host's bytes ── CPU ──▶ slab ── device ──▶ region
//!                           slab ── device ──▶       one is filled while others are copied
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{DeviceError, DeviceUpstream, Region, Remedy, Stream, Transfer};
use crate::memory::error::MemoryError;
use crate::memory::ledger::{Query, Task};
use crate::memory::pinned::{PinnedPool, SLAB, Slab};

/// The most slabs that a copier has at one time.
const SLABS: usize = 4;

/// Copies of no more bytes need no slab: they take no longer than the wait for their end.
const SMALL: u64 = 64 << 10;

const UPLOAD: &str = "a copy to the device";
const DOWNLOAD: &str = "a copy from the device";

type PinnedSlab = Slab<DeviceUpstream>;

/// Copies in the order of one stream. Where no slab is free, the host's bytes are copied as they
/// are, which is slower, and counted.
///
/// Slabs are reserved for the query of the task that copies, and those of an upload go back when
/// their copy is done and somebody looks: at a later copy, at [`Copier::wait`], or when the copier
/// is dropped. One of these has to come before the query's end.
pub struct Copier {
    stream: Arc<Stream>,
    slabs: Arc<PinnedPool<DeviceUpstream>>,
    /// The oldest first.
    uploads: Mutex<VecDeque<Transfer<PinnedSlab>>>,
}

impl Copier {
    /// Copies in the order of this stream.
    pub fn new(stream: Arc<Stream>, slabs: Arc<PinnedPool<DeviceUpstream>>) -> Self {
        Copier { stream, slabs, uploads: Mutex::default() }
    }

    /// Its stream.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Copies pieces of the host's memory, one behind the other, to where the region begins. When
    /// this returns, the pieces are no longer needed, and what the stream is given next finds them
    /// there.
    ///
    /// An error is a [`MemoryError::Copy`].
    pub fn upload<'a>(
        &self,
        task: &Task,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        to: Region,
    ) -> Result<(), MemoryError> {
        self.upload_for(task.query(), pieces, to)
    }

    /// Copies from where the region begins, after all that the stream has until now. When this
    /// returns, the bytes are there.
    ///
    /// An error is a [`MemoryError::Copy`].
    pub fn download(&self, task: &Task, from: Region, to: &mut [u8]) -> Result<(), MemoryError> {
        self.download_for(task.query(), from, to)
    }

    /// Blocks until uploads are done and their slabs have gone back.
    pub fn wait(&self) -> Result<(), MemoryError> {
        let mut uploads = self.uploads.lock();
        while let Some(oldest) = uploads.pop_front() {
            oldest.wait().map_err(failed(UPLOAD))?;
        }
        Ok(())
    }

    pub(super) fn upload_for<'a>(
        &self,
        query: &Query,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        to: Region,
    ) -> Result<(), MemoryError> {
        let pieces = pieces.into_iter();
        if to.bytes() <= SMALL {
            let bytes = pieces.collect::<Vec<_>>().concat();
            return self.stream.upload(&bytes, to).map_err(failed(UPLOAD));
        }
        self.upload_large(query, pieces, to).map_err(failed(UPLOAD))
    }

    fn upload_large<'a>(
        &self,
        query: &Query,
        pieces: impl Iterator<Item = &'a [u8]>,
        to: Region,
    ) -> Result<(), DeviceError> {
        let mut uploads = self.uploads.lock();
        let mut offset = 0;
        let mut next = |bytes: usize| {
            let part = to.part(offset, bytes as u64);
            offset += bytes as u64;
            part
        };
        let mut filling: Option<(PinnedSlab, usize)> = None;
        for mut rest in pieces {
            while !rest.is_empty() {
                let slab = match filling.take() {
                    Some(filling) => Some(filling),
                    None => self.slab_for_upload(query, &mut uploads)?.map(|slab| (slab, 0)),
                };
                let room = SLAB as usize - slab.as_ref().map_or(0, |(_, filled)| *filled);
                let (now, later) = rest.split_at(rest.len().min(room));
                rest = later;
                match slab {
                    None => self.stream.upload(now, next(now.len())?)?,
                    Some((mut slab, filled)) => {
                        let end = filled + now.len();
                        slab[filled..end].copy_from_slice(now);
                        if now.len() < room {
                            filling = Some((slab, end));
                        } else {
                            uploads.push_back(self.stream.upload_from(slab, end, next(end)?)?);
                        }
                    }
                }
            }
        }
        if let Some((slab, end)) = filling {
            uploads.push_back(self.stream.upload_from(slab, end, next(end)?)?);
        }
        Ok(())
    }

    /// A free slab, if need be that of the oldest upload, for which it waits.
    fn slab_for_upload(
        &self,
        query: &Query,
        uploads: &mut VecDeque<Transfer<PinnedSlab>>,
    ) -> Result<Option<PinnedSlab>, DeviceError> {
        loop {
            let full = uploads.len() == SLABS;
            if !full && let Some(slab) = self.slabs.try_take(query) {
                return Ok(Some(slab));
            }
            let Some(oldest) = uploads.pop_front() else {
                self.slabs.count_pageable();
                return Ok(None);
            };
            // It goes back to the pool: it may be another query's.
            oldest.wait()?;
        }
    }

    pub(super) fn download_for(
        &self,
        query: &Query,
        from: Region,
        to: &mut [u8],
    ) -> Result<(), MemoryError> {
        self.download_in_parts(query, from, to).map_err(failed(DOWNLOAD))
    }

    fn download_in_parts(
        &self,
        query: &Query,
        from: Region,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        let from = from.part(0, to.len() as u64)?;
        if from.bytes() <= SMALL {
            return self.stream.download(from, to);
        }
        // The stream has them first anyway, and their slabs are of use.
        for upload in self.uploads.lock().drain(..) {
            upload.wait()?;
        }
        let mut downloads = VecDeque::new();
        let mut offset = 0;
        for part in to.chunks_mut(SLAB as usize) {
            let region = from.part(offset, part.len() as u64)?;
            offset += region.bytes();
            loop {
                let full = downloads.len() == SLABS;
                if !full && let Some(slab) = self.slabs.try_take(query) {
                    downloads.push_back((self.stream.download_into(region, slab)?, part));
                    break;
                }
                let Some(oldest) = downloads.pop_front() else {
                    self.slabs.count_pageable();
                    self.stream.download(region, part)?;
                    break;
                };
                finish(oldest)?;
            }
        }
        downloads.into_iter().try_for_each(finish)
    }
}

/// Waits for a download into a slab, and takes it from there.
fn finish((download, to): (Transfer<PinnedSlab>, &mut [u8])) -> Result<(), DeviceError> {
    let slab = download.wait()?;
    to.copy_from_slice(&slab[..to.len()]);
    Ok(())
}

/// The error of a copy.
fn failed(what: &'static str) -> impl Fn(DeviceError) -> MemoryError {
    move |error| {
        let sticky = error.remedy() == Remedy::Restart;
        MemoryError::Copy { what, reason: error.to_string(), sticky }
    }
}
