//! What happens on a node, in a file that all of its processes map: `DIR/state`.
//!
//! All numbers are of the machine's byte order and aligned, so a C or C++ library maps the same
//! file and uses `std::atomic`. The layout (offsets and sizes in bytes):
//!
//! | offset | size | what |
//! |---|---|---|
//! | 0 | 8 | `SIMGPU1\n` |
//! | 8 | 8 | generation of `faults.toml`: whoever sees it change reads that file anew |
//! | 16 | 8 | events ever raised: event number *n* (from 0) is in slot *n* mod 256 |
//! | 24 | 40 | unused |
//! | 64 | 64 × 8 | per GPU: bytes in use by no process |
//! | 576 | 1024 × 32 | [`Claim`]: memory that a process uses |
//! | 33344 | 256 × 32 | [`Event`] |
//!
//! Readers take no lock. Whoever takes a free claim, or adds memory up to decide whether more fits,
//! holds `flock(LOCK_EX)` on the file; a process changes the bytes of its own claim as it likes.
//! A claim ends with its process: readers ignore one whose process is gone, takers reuse it.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;

use crate::Error;
use crate::topology::Topology;

const MAGIC: u64 = u64::from_ne_bytes(*b"SIMGPU1\n");
const CLAIMS: usize = 1024;
const EVENTS: usize = 256;

#[repr(C)]
struct Layout {
    magic: AtomicU64,
    faults: AtomicU64,
    events_raised: AtomicU64,
    unused: [u64; 5],
    used: [AtomicU64; Topology::MAX_GPUS],
    claims: [Claim; CLAIMS],
    events: [Event; EVENTS],
}

/// Memory that a process uses on a GPU or slice.
#[repr(C)]
#[derive(Debug)]
pub struct Claim {
    /// The process; 0: the claim is free.
    pid: AtomicU32,
    /// NVML index of the GPU.
    gpu: AtomicU32,
    /// Index of the slice on it; -1: the whole GPU.
    slice: AtomicI32,
    /// 0: compute, 1: graphics.
    kind: AtomicU32,
    /// When the process started: field 22 of `/proc/PID/stat`. 0: not known, the claim stays.
    started: AtomicU64,
    /// Bytes.
    bytes: AtomicU64,
}

/// An event as NVML's event sets give it.
#[repr(C)]
#[derive(Debug)]
pub struct Event {
    gpu: AtomicU32,
    unused: AtomicU32,
    /// `nvmlEventType*`.
    kind: AtomicU64,
    /// The Xid.
    data: AtomicU64,
    /// Seconds since the Unix epoch.
    time: AtomicU64,
}

/// A process and the memory that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The process.
    pub pid: u32,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// Index of the slice on it.
    pub slice: Option<u32>,
    /// Bytes.
    pub bytes: u64,
}

/// An event that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// NVML index of the GPU.
    pub gpu: u32,
    /// `nvmlEventType*`.
    pub kind: u64,
    /// The Xid.
    pub data: u64,
}

/// The mapped state of a node.
#[derive(Debug)]
pub struct State {
    path: PathBuf,
    file: File,
    /// Among threads: a lock of the file is the whole process's.
    threads: Mutex<()>,
    layout: NonNull<Layout>,
}

// SAFETY: the mapping is of atomics only, and lives as long as the value.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    /// Maps `DIR/state`, and makes it first if there is none.
    pub fn open(directory: &Path) -> Result<Self, Error> {
        let path = directory.join("state");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io(&path))?;
        let size = size_of::<Layout>();
        let length = file.metadata().map_err(Error::io(&path))?.len();
        if length == 0 {
            file.set_len(size as u64).map_err(Error::io(&path))?;
            // Users of all uids share a node; who doesn't own the file needs not change its mode.
            file.set_permissions(PermissionsExt::from_mode(0o666)).ok();
        } else if length != size as u64 {
            return Err(Error::State(path));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of the whole file, whose length is that of the layout; the
        // layout is of integers, for which any bytes are valid.
        let address = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, fd, 0)
        };
        let layout = NonNull::new(address.cast::<Layout>())
            .filter(|_| address != libc::MAP_FAILED)
            .ok_or_else(|| Error::io(&path)(std::io::Error::last_os_error()))?;
        let state = Self { path, file, threads: Mutex::default(), layout };
        let old =
            state.layout().magic.compare_exchange(0, MAGIC, Ordering::AcqRel, Ordering::Acquire);
        match old {
            Ok(_) | Err(MAGIC) => Ok(state),
            Err(_) => Err(Error::State(state.path.clone())),
        }
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped in `open`, unmapped in `drop`, and only ever accessed by its atomics.
        unsafe { self.layout.as_ref() }
    }

    /// Forgets everything.
    pub fn clear(&self) -> Result<(), Error> {
        let _lock = self.lock()?;
        for used in &self.layout().used {
            used.store(0, Ordering::Release);
        }
        for claim in &self.layout().claims {
            claim.pid.store(0, Ordering::Release);
        }
        Ok(())
    }

    /// The generation of the node's faults.
    pub fn faults(&self) -> u64 {
        self.layout().faults.load(Ordering::Acquire)
    }

    /// Says that the node's faults have changed.
    pub fn faults_changed(&self) {
        self.layout().faults.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets the memory of a GPU that no process uses.
    pub fn set_used(&self, gpu: u32, bytes: u64) {
        self.layout().used[gpu as usize].store(bytes, Ordering::Release);
    }

    /// The memory of a GPU that no process uses.
    pub fn used(&self, gpu: u32) -> u64 {
        self.layout().used[gpu as usize].load(Ordering::Acquire)
    }

    /// Sets the memory that a process uses on a GPU or slice; 0 bytes end the claim. A process that
    /// doesn't run is taken for one of another pid namespace: its claim stays until it is ended.
    pub fn claim(&self, wanted: Use) -> Result<(), Error> {
        let _lock = self.lock()?;
        self.write_claim(wanted, false)
    }

    /// Sets a claim, with the lock held. One of 0 bytes ends unless it is to be kept.
    fn write_claim(&self, wanted: Use, keep: bool) -> Result<(), Error> {
        let slice = wanted.slice.map_or(-1, u32::cast_signed);
        let claims = &self.layout().claims;
        let own = claims.iter().find(|claim| {
            claim.pid.load(Ordering::Acquire) == wanted.pid
                && claim.gpu.load(Ordering::Relaxed) == wanted.gpu
                && claim.slice.load(Ordering::Relaxed) == slice
        });
        match own.or_else(|| claims.iter().find(|claim| !claim.lives())) {
            Some(claim) if wanted.bytes == 0 && !keep => claim.pid.store(0, Ordering::Release),
            Some(claim) => {
                claim.pid.store(0, Ordering::Release);
                claim.gpu.store(wanted.gpu, Ordering::Relaxed);
                claim.slice.store(slice, Ordering::Relaxed);
                claim.kind.store(0, Ordering::Relaxed);
                claim.started.store(process_start(wanted.pid).unwrap_or(0), Ordering::Relaxed);
                claim.bytes.store(wanted.bytes, Ordering::Relaxed);
                claim.pid.store(wanted.pid, Ordering::Release);
            }
            None => return Err(Error::Full(self.path.clone())),
        }
        Ok(())
    }

    /// Adds to the memory that the calling process uses on a GPU or slice, if it then fits beside
    /// what is in use there by others; whether it did. `room` is what there is for processes, in
    /// bytes. With 0 bytes, the process is one that uses the device, and no more.
    pub fn grow(&self, gpu: u32, slice: Option<u32>, bytes: u64, room: u64) -> Result<bool, Error> {
        let _lock = self.lock()?;
        let pid = std::process::id();
        let all = self.uses(gpu);
        let here = all.iter().filter(|claim| claim.slice == slice);
        let own = here.clone().find(|claim| claim.pid == pid).map_or(0, |claim| claim.bytes);
        // What no process uses is of the whole GPU.
        let others = if slice.is_none() { self.used(gpu) } else { 0 };
        let used = others + here.map(|claim| claim.bytes).sum::<u64>();
        if bytes > room.saturating_sub(used) {
            return Ok(false);
        }
        self.write_claim(Use { pid, gpu, slice, bytes: own + bytes }, true)?;
        Ok(true)
    }

    /// Takes from the memory that the calling process uses on a GPU or slice.
    pub fn shrink(&self, gpu: u32, slice: Option<u32>, bytes: u64) -> Result<(), Error> {
        let _lock = self.lock()?;
        let pid = std::process::id();
        let own = self.uses(gpu).into_iter().find(|claim| claim.pid == pid && claim.slice == slice);
        let Some(own) = own else { return Ok(()) };
        self.write_claim(Use { bytes: own.bytes.saturating_sub(bytes), ..own }, true)
    }

    /// The memory that living processes use on a GPU and its slices.
    pub fn uses(&self, gpu: u32) -> Vec<Use> {
        let claims = self.layout().claims.iter();
        claims
            .filter(|claim| {
                claim.pid.load(Ordering::Acquire) != 0
                    && claim.gpu.load(Ordering::Relaxed) == gpu
                    && claim.lives()
            })
            .map(|claim| Use {
                pid: claim.pid.load(Ordering::Acquire),
                gpu,
                slice: u32::try_from(claim.slice.load(Ordering::Relaxed)).ok(),
                bytes: claim.bytes.load(Ordering::Relaxed),
            })
            .collect()
    }

    /// How many events were ever raised.
    pub fn events_raised(&self) -> u64 {
        self.layout().events_raised.load(Ordering::Acquire)
    }

    /// Raises an event.
    pub fn raise(&self, event: Raised) -> Result<(), Error> {
        let _lock = self.lock()?;
        let number = self.events_raised();
        let slot = &self.layout().events[(number % EVENTS as u64) as usize];
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        slot.gpu.store(event.gpu, Ordering::Relaxed);
        slot.kind.store(event.kind, Ordering::Relaxed);
        slot.data.store(event.data, Ordering::Relaxed);
        slot.time.store(time, Ordering::Relaxed);
        self.layout().events_raised.store(number + 1, Ordering::Release);
        Ok(())
    }

    /// Event number `number`, from 0; absent if it was not raised yet, or too long ago.
    pub fn event(&self, number: u64) -> Option<Raised> {
        let raised = self.events_raised();
        if number >= raised || raised - number > EVENTS as u64 {
            return None;
        }
        let slot = &self.layout().events[(number % EVENTS as u64) as usize];
        Some(Raised {
            gpu: slot.gpu.load(Ordering::Relaxed),
            kind: slot.kind.load(Ordering::Relaxed),
            data: slot.data.load(Ordering::Relaxed),
        })
    }

    fn lock(&self) -> Result<Lock<'_>, Error> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::fs::flock(&self.file, FlockOperation::LockExclusive)
            .map_err(|error| Error::io(&self.path)(error.into()))?;
        Ok(Lock { file: &self.file, _threads: threads })
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length; no reference outlives the value.
        unsafe {
            libc::munmap(self.layout.as_ptr().cast(), size_of::<Layout>());
        }
    }
}

impl Claim {
    fn lives(&self) -> bool {
        let pid = self.pid.load(Ordering::Acquire);
        let started = self.started.load(Ordering::Relaxed);
        pid != 0 && (started == 0 || process_start(pid) == Some(started))
    }
}

struct Lock<'a> {
    file: &'a File,
    /// Released after the file's.
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // It ends with the file at the latest.
        let _ = rustix::fs::flock(self.file, FlockOperation::Unlock);
    }
}

/// When a process started, in clock ticks since boot; absent if there is none (proc(5)).
fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold anything.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn threads_that_take_and_give_back_at_once_leave_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        assert!(state.grow(0, None, 4096, 1 << 30).unwrap());
                        state.shrink(0, None, 4096).unwrap();
                    }
                });
            }
        });
        assert_eq!(state.uses(0).iter().map(|claim| claim.bytes).sum::<u64>(), 0);
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(std::mem::offset_of!(Layout, used), 64);
        assert_eq!(std::mem::offset_of!(Layout, claims), 576);
        assert_eq!(std::mem::offset_of!(Layout, events), 33344);
        assert_eq!(size_of::<Layout>(), 41536);
        assert_eq!((size_of::<Claim>(), size_of::<Event>()), (32, 32));
    }

    #[test]
    fn a_claim_ends_with_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let other = State::open(directory.path()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let wanted = Use { pid: child.id(), gpu: 3, slice: None, bytes: 5 << 20 };
        state.claim(wanted).unwrap();
        assert_eq!(other.uses(3), [wanted]);
        assert_eq!(other.uses(2), []);
        other.claim(Use { bytes: 7, ..wanted }).unwrap();
        assert_eq!(state.uses(3), [Use { bytes: 7, ..wanted }]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(other.uses(3), []);
    }

    #[test]
    fn memory_is_taken_as_far_as_it_fits() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        let bytes = |state: &State| state.uses(0).iter().map(|claim| claim.bytes).sum::<u64>();
        state.set_used(0, 30);
        state.claim(Use { pid: 1 << 23, gpu: 0, slice: None, bytes: 20 }).unwrap();
        state.claim(Use { pid: 1 << 23, gpu: 0, slice: Some(1), bytes: 99 }).unwrap();
        assert!(state.grow(0, None, 0, 100).unwrap());
        assert!(state.grow(0, None, 40, 100).unwrap());
        assert!(!state.grow(0, None, 11, 100).unwrap());
        assert!(state.grow(0, None, 10, 100).unwrap());
        assert!(!state.grow(0, Some(1), 2, 100).unwrap());
        assert_eq!(bytes(&state), 20 + 99 + 50);
        state.shrink(0, None, 50).unwrap();
        assert_eq!(bytes(&state), 20 + 99);
        assert_eq!(state.uses(0).len(), 3);
    }

    #[test]
    fn a_claim_of_no_process_stays_until_it_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        // Beyond the greatest pid that Linux gives.
        let wanted = Use { pid: 1 << 23, gpu: 0, slice: Some(2), bytes: 1 };
        state.claim(wanted).unwrap();
        assert_eq!(state.uses(0), [wanted]);
        state.claim(Use { bytes: 0, ..wanted }).unwrap();
        assert_eq!(state.uses(0), []);
    }

    #[test]
    fn the_last_events_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let state = State::open(directory.path()).unwrap();
        for data in 0..300 {
            state.raise(Raised { gpu: 1, kind: 8, data }).unwrap();
        }
        assert_eq!(state.events_raised(), 300);
        assert_eq!(state.event(299), Some(Raised { gpu: 1, kind: 8, data: 299 }));
        assert_eq!(state.event(43), None);
        assert_eq!(state.event(300), None);
    }

    #[test]
    fn another_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("state"), "what").unwrap();
        assert!(matches!(State::open(directory.path()), Err(Error::State(_))));
    }
}
