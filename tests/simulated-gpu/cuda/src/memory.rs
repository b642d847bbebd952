//! Device and pinned memory: address space of the host, handed out with poison in it.
//!
//! ```text
//!   space of a device, reserved:  no access ┊ slack│ an allocation │┊ no access ┊ slack│ …
//!                                           └─ mapped pages ────────┘
//! ```
//!
//! The end of an allocation, rounded up to 256 bytes, is the end of its pages, and between
//! allocations is nothing: what goes far beyond an end, or to what was freed, faults. What is
//! written into the slack is found when the allocation is freed. Addresses are given anew only when
//! the whole space has been given once.
//!
//! Pages are private copies of one file full of poison, so that gigabytes cost nothing until they
//! are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock};

use libc::{MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE};
use libc::{PROT_NONE, PROT_READ, PROT_WRITE};
use simulated_nvml::CudaCode;

use crate::context::Context;
use crate::device::Device;
use crate::driver::{Driver, Result, complain};
use crate::stream::Stream;
use crate::table::Handle;

const PAGE: u64 = 4096;
/// Alignment of what is handed out.
const ALIGNMENT: u64 = 256;
/// Bytes are counted in units of this.
const UNIT: u64 = 512;
/// Addresses of a device at the least: pinned memory of the host is among them, and pages around
/// each allocation, however small both the device and the allocation are.
const LEAST_SPACE: u64 = 4 << 30;
/// Length of the file of poison.
const POISON_FILE: u64 = 32 << 20;
/// What memory is full of that nobody has written.
pub(crate) const POISON: u8 = 0xa5;

/// All memory of the process that the driver knows.
pub(crate) struct Memory {
    allocations: RwLock<BTreeMap<u64, Allocation>>,
    spaces: Vec<Space>,
    poison: File,
}

/// The addresses of a device.
struct Space {
    size: u64,
    start: OnceLock<u64>,
    next: AtomicU64,
}

/// Memory that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) kind: Kind,
    /// The context whose it is.
    pub(crate) context: Handle,
    /// Its device's ordinal.
    pub(crate) device: usize,
}

/// What an allocation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemAllocAsync`, from this pool.
    Pooled(Handle),
    /// Freed, and kept by its pool.
    Free,
    /// `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// `cuMemHostRegister`, with its flags.
    Registered(u32),
}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Whether it is memory of the host, by `cuMemHostAlloc` or `cuMemHostRegister`.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Pinned(_) | Kind::Registered(_))
    }

    /// Its pages.
    fn pages(&self) -> (u64, u64) {
        let start = self.start / PAGE * PAGE;
        (start, (self.start + self.size.next_multiple_of(ALIGNMENT)) - start)
    }
}

/// Bytes as they are counted.
pub(crate) fn counted(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT)
}

/// Whether an allocation of one size has the pages of another.
pub(crate) fn is_as_long(one: u64, other: u64) -> bool {
    one.next_multiple_of(ALIGNMENT) == other.next_multiple_of(ALIGNMENT)
}

impl Memory {
    pub(crate) fn new(devices: &[Device]) -> std::result::Result<Self, String> {
        // SAFETY: the name is a string; the descriptor that comes is new and ours.
        let poison = unsafe {
            let fd = libc::memfd_create(c"poison".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(std::io::Error::last_os_error().to_string());
            }
            File::from_raw_fd(fd)
        };
        let spaces = devices
            .iter()
            .map(|device| Space {
                // Each byte twice, and as much again for what lies between.
                size: (4 * device.memory).next_multiple_of(PAGE).max(LEAST_SPACE),
                start: OnceLock::new(),
                next: AtomicU64::new(0),
            })
            .collect();
        Ok(Self { allocations: RwLock::default(), spaces, poison })
    }

    /// The allocation that an address is in; its end is in it too, if in no other.
    pub(crate) fn find(&self, address: u64) -> Option<Allocation> {
        let allocations = self.allocations.read().unwrap_or_else(PoisonError::into_inner);
        let (_, found) = allocations.range(..=address).next_back()?;
        (address <= found.end() && found.kind != Kind::Free).then_some(*found)
    }

    /// The allocation that a range is in.
    pub(crate) fn range(&self, start: u64, size: u64) -> Option<Allocation> {
        let found = self.find(start)?;
        (start.checked_add(size)? <= found.end()).then_some(found)
    }

    /// Hands out new memory. The device's count of bytes is not touched.
    pub(crate) fn allocate(
        &self,
        driver: &Driver,
        context: &Context,
        size: u64,
        kind: Kind,
    ) -> Result<u64> {
        self.fill_poison_file()?;
        let space = &self.spaces[context.device];
        let pages = size.next_multiple_of(ALIGNMENT).next_multiple_of(PAGE);
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let base = space.reserve()?;
        // A page without access before and behind.
        let wanted = pages + 2 * PAGE;
        let mut at = base + space.next.load(Ordering::Relaxed);
        let mut wrapped = false;
        loop {
            if at + wanted > base + space.size {
                if wrapped {
                    return Err(CudaCode::OUT_OF_MEMORY);
                }
                wrapped = true;
                at = base;
            }
            let before = allocations.range(..at + wanted).next_back();
            match before.map(|(_, other)| other.pages()) {
                Some((start, length)) if start + length > at => at = start + length,
                _ => break,
            }
        }
        space.next.store(at + wanted - PAGE - base, Ordering::Relaxed);
        let first = at + PAGE;
        self.map(first, pages)?;
        let start = first + pages - size.next_multiple_of(ALIGNMENT);
        let allocation =
            Allocation { start, size, kind, context: context.handle, device: context.device };
        driver.kernels.forbid(first, start - first);
        driver.kernels.forbid(start + size, first + pages - (start + size));
        allocations.insert(start, allocation);
        Ok(start)
    }

    /// Enters memory of the process itself.
    pub(crate) fn register(&self, allocation: Allocation) -> Result<()> {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let before = allocations.range(..allocation.end()).next_back();
        if before.is_some_and(|(_, other)| other.end() > allocation.start) {
            return Err(CudaCode(712));
        }
        allocations.insert(allocation.start, allocation);
        Ok(())
    }

    /// Forgets an allocation.
    pub(crate) fn remove(&self, start: u64) -> Option<Allocation> {
        self.allocations.write().unwrap_or_else(PoisonError::into_inner).remove(&start)
    }

    /// Marks an allocation of a pool as freed, or hands its pages out again: to one whose size comes
    /// to the same length.
    pub(crate) fn change(&self, driver: &Driver, allocation: Allocation) {
        let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let (first, length) = allocation.pages();
        driver.kernels.allow(allocation.start, first + length - allocation.start);
        driver.kernels.forbid(allocation.end(), first + length - allocation.end());
        allocations.insert(allocation.start, allocation);
    }

    /// Frees what a context has left.
    pub(crate) fn release_context(&self, driver: &Driver, context: Handle) {
        let left: Vec<Allocation> = {
            let mut allocations = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
            let of = |allocation: &Allocation| {
                allocation.context == context && !matches!(allocation.kind, Kind::Registered(_))
            };
            let left = allocations.values().copied().filter(of).collect();
            allocations.retain(|_, allocation| allocation.context != context);
            left
        };
        for allocation in left {
            match allocation.kind {
                // Of these the pool knows.
                Kind::Free => continue,
                Kind::Pooled(pool) => {
                    if let Some(pool) = driver.pools.get(pool) {
                        pool.lose(counted(allocation.size));
                    }
                }
                _ => {}
            }
            if !allocation.is_host() {
                driver.devices[allocation.device].give_back(driver, counted(allocation.size));
            }
            unmap(driver, &allocation);
        }
        for pool in driver.pools.all() {
            pool.forget_context(driver, context);
        }
    }

    /// Maps poison over pages of a space.
    fn map(&self, start: u64, length: u64) -> Result<()> {
        let mut at = start;
        while at < start + length {
            let part = (start + length - at).min(POISON_FILE);
            // SAFETY: pages of a space of ours that no allocation has.
            let mapped = unsafe {
                libc::mmap(
                    at as *mut _,
                    part as usize,
                    PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
                    self.poison.as_raw_fd(),
                    0,
                )
            };
            if mapped == MAP_FAILED {
                let error = std::io::Error::last_os_error();
                return Err(complain(CudaCode::OUT_OF_MEMORY, error));
            }
            at += part;
        }
        Ok(())
    }

    /// Fills the file of poison, the first time.
    fn fill_poison_file(&self) -> Result<()> {
        use std::io::Write;
        if self.poison.metadata().is_ok_and(|file| file.len() == POISON_FILE) {
            return Ok(());
        }
        let _one = self.allocations.write().unwrap_or_else(PoisonError::into_inner);
        let length = self.poison.metadata().map_or(0, |file| file.len());
        let rest = vec![POISON; (POISON_FILE - length) as usize];
        (&self.poison).write_all(&rest).map_err(|error| complain(CudaCode::OUT_OF_MEMORY, error))
    }
}

impl Space {
    /// Reserves the addresses, the first time; their start.
    fn reserve(&self) -> Result<u64> {
        if let Some(start) = self.start.get() {
            return Ok(*start);
        }
        // SAFETY: a new mapping, without access.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                self.size as usize,
                PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == MAP_FAILED {
            return Err(complain(CudaCode::OUT_OF_MEMORY, std::io::Error::last_os_error()));
        }
        Ok(*self.start.get_or_init(|| start as u64))
    }
}

/// Gives the pages of an allocation back, that is forgotten or about to be.
pub(crate) fn unmap(driver: &Driver, allocation: &Allocation) {
    let (start, length) = allocation.pages();
    look_at_slack(driver, allocation);
    driver.kernels.allow(start, length);
    // SAFETY: pages of a space of ours, which nothing of Rust refers to.
    unsafe {
        libc::mmap(
            start as *mut _,
            length as usize,
            PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
            -1,
            0,
        );
    }
}

/// What was written around an allocation was written by who has no right to.
fn look_at_slack(driver: &Driver, allocation: &Allocation) {
    let (first, length) = allocation.pages();
    let slack = [(first, allocation.start), (allocation.end(), first + length)];
    for (start, end) in slack {
        driver.kernels.allow(start, end - start);
        // SAFETY: pages of the allocation; kernels that write there do so against the rules.
        let bytes =
            unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) };
        if let Some(at) = bytes.iter().position(|byte| *byte != POISON) {
            driver.fail_for_good(
                CudaCode::ILLEGAL_ADDRESS,
                format_args!(
                    "{:#x} was written, outside of the allocation of {} bytes at {:#x}",
                    start + at as u64,
                    allocation.size,
                    allocation.start
                ),
            );
        }
    }
}

/// Fills memory with poison, as if it had just been handed out.
pub(crate) fn poison(start: u64, size: u64) {
    let (first, last) = (start.next_multiple_of(PAGE), (start + size) / PAGE * PAGE);
    let fill = |from: u64, to: u64| {
        // SAFETY: memory of an allocation, which nothing of Rust refers to.
        unsafe { libc::memset(from as *mut _, i32::from(POISON), (to - from) as usize) };
    };
    if first >= last {
        return fill(start, start + size);
    }
    fill(start, first);
    fill(last, start + size);
    // The copies are dropped: what is read next is the file of poison.
    // SAFETY: whole pages of an allocation.
    unsafe {
        libc::madvise(first as *mut _, (last - first) as usize, libc::MADV_DONTNEED);
    }
}

/// `cuMemAlloc` and its like.
pub(crate) fn allocate(driver: &Driver, context: &Context, size: u64, kind: Kind) -> Result<u64> {
    if size == 0 {
        return Err(CudaCode::INVALID_VALUE);
    }
    let device = &driver.devices[context.device];
    let of_host = matches!(kind, Kind::Pinned(_));
    if !of_host {
        device.take(driver, counted(size))?;
    }
    let result = driver.memory.allocate(driver, context, size, kind);
    if result.is_err() && !of_host {
        device.give_back(driver, counted(size));
    }
    result
}

/// `cuMemFree` and its like: waits for the context's work, then frees what `may` says is right.
pub(crate) fn free(
    driver: &'static Driver,
    context: &Context,
    start: u64,
    may: impl FnOnce(&Allocation) -> bool,
) -> Result<()> {
    let allocation = driver.memory.find(start).filter(|found| found.start == start);
    let allocation = allocation.filter(may).ok_or(CudaCode::INVALID_VALUE)?;
    context.synchronize(driver)?;
    if let Kind::Pooled(pool) = allocation.kind {
        let pool = driver.pools.get(pool).ok_or(CudaCode::INVALID_VALUE)?;
        return pool.free(driver, context, &context.legacy, &allocation);
    }
    driver.memory.remove(start).ok_or(CudaCode::INVALID_VALUE)?;
    unmap(driver, &allocation);
    if !allocation.is_host() {
        driver.devices[allocation.device].give_back(driver, counted(allocation.size));
    }
    driver.check()
}

/// What a copy reads from or writes to.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// Device memory, or memory of the host that the driver knows.
    Known(u64),
    /// Any other memory of the host.
    Pageable(u64),
}

/// Checks a range that has to be of a device.
pub(crate) fn on_device(driver: &Driver, start: u64, size: u64) -> Result<Place> {
    driver.memory.range(start, size).map(|_| Place::Known(start)).ok_or(CudaCode::INVALID_VALUE)
}

/// Looks at a range that is of the host; null is no memory.
pub(crate) fn on_host(driver: &Driver, start: u64, size: u64) -> Result<Place> {
    match driver.memory.range(start, size) {
        _ if start == 0 => Err(CudaCode::INVALID_VALUE),
        Some(_) => Ok(Place::Known(start)),
        None => Ok(Place::Pageable(start)),
    }
}

/// A copy in a stream. What is pageable is copied before the call comes back, as the driver does:
/// first to memory of its own, or after all earlier work.
pub(crate) fn copy(
    driver: &'static Driver,
    context: &Context,
    stream: &Stream,
    name: &'static str,
    (to, from, size): (Place, Place, u64),
) -> Result<()> {
    let gpu = driver.devices[context.device].gpu;
    let work = move |to: u64, from: u64| {
        driver.suffer_at_work(name, gpu);
        // SAFETY: both ranges are of that size: those of the driver's own were checked, the others
        // are the caller's to warrant.
        unsafe {
            std::ptr::copy(from as *const u8, to as *mut u8, size as usize);
        }
    };
    match (to, from) {
        (Place::Known(to), Place::Pageable(from)) => {
            // SAFETY: the caller warrants the range.
            let staged =
                unsafe { std::slice::from_raw_parts(from as *const u8, size as usize) }.to_vec();
            stream.submit(driver, context, move || work(to, staged.as_ptr() as u64));
        }
        (Place::Known(to), Place::Known(from)) => {
            stream.submit(driver, context, move || work(to, from));
        }
        (Place::Pageable(to), Place::Known(from) | Place::Pageable(from)) => {
            stream.submit(driver, context, move || work(to, from)).wait();
            driver.check()?;
        }
    }
    Ok(())
}
