//! DataFusion, as an executor uses it.
//!
//! - [`Engine`]: what the sessions of an executor share: memory pool, spill directory, threads.
//! - [`session`]: what a connection has of its own: tables, options, prepared statements;
//!   [`traffic`]: what it did so far.
//! - [`syntax`]: from text to a statement, within limits.
//! - [`statement`]: which statements a client may run, and what each is.
//! - [`files`]: tables by path, as `FROM 'dir/*.parquet'`.
//! - [`query`]: a running query; [`queries`]: all of them.
//! - [`result`]: the shape of results; [`failure`]: the words of errors.
//! - [`memory`]: how much memory there is to share; `pool`: how it is shared.

pub mod failure;
pub mod files;
pub mod memory;
mod pool;
pub mod queries;
pub mod query;
pub mod result;
pub mod session;
pub mod statement;
pub mod syntax;
pub mod traffic;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use creel_gpu::memory::error::Process;
use creel_settings::Settings;
use creel_wire::{Attach, AttachmentReport, GpuHolder, MemoryReport, Report, Start};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::TrackConsumersPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tracing::warn;

use self::pool::QueryPool;
use self::queries::Queries;
use self::session::Session;
use self::traffic::Traffic;
use crate::error::Result;
use crate::gpu::memory::Host;
use crate::gpu::{Gpu, GpuAttachment};

/// The device of an executor that has no GPU.
const CPU: &str = "cpu";

/// Consumers that an out-of-memory error names.
const NAMED_CONSUMERS: NonZeroUsize = NonZeroUsize::new(5).unwrap();

/// Queries that are planned at one time, for each query thread. Some wait for files meanwhile.
const PLANNINGS_PER_THREAD: usize = 4;

/// What the sessions of an executor share.
pub struct Engine {
    runtime: Arc<RuntimeEnv>,
    /// A state that new sessions start from, so that functions are registered once.
    template: SessionState,
    settings: Settings,
    memory_limit: u64,
    spill_limit: u64,
    spill_dir: PathBuf,
    queries: Queries,
    query_threads: usize,
    threads: Handle,
    planning: Arc<Semaphore>,
    attachments: Mutex<BTreeMap<u64, Arc<Traffic>>>,
    gpu: Result<Arc<Gpu>, NoGpu>,
}

/// Why an executor has no GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGpu {
    /// It is to compute on the CPU.
    Cpu,
    /// There is one, and it can't be used, for that reason.
    Unusable(String),
}

impl Engine {
    /// Makes the engine: `threads` query threads, behind that handle.
    pub fn new(start: &Start, settings: Settings, threads: usize, handle: Handle) -> Result<Self> {
        let memory_limit = settings.executor_memory.of(memory::total());
        let spill_limit = settings.executor_spill_max_bytes.0;
        let pool = QueryPool::new(usize::try_from(memory_limit).unwrap_or(usize::MAX));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(TrackConsumersPool::new(pool, NAMED_CONSUMERS)))
            .with_disk_manager_builder(disk(&start.spill_dir, spill_limit))
            // A listing that is kept would hide files that were written since.
            .with_object_list_cache_limit(0)
            .build_arc()?;
        let config = SessionConfig::new()
            .with_information_schema(true)
            .with_target_partitions(partitions(&settings, threads))
            .with_batch_size(settings.sql_batch_size);
        let template = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(Arc::clone(&runtime))
            .with_default_features()
            .build();
        let gpu = open_gpu(start, &settings, memory_limit, threads);
        Ok(Self {
            runtime,
            template,
            settings,
            memory_limit,
            spill_limit,
            spill_dir: start.spill_dir.clone(),
            queries: Queries::new(&start.id),
            query_threads: threads,
            threads: handle,
            planning: Arc::new(Semaphore::new(threads * PLANNINGS_PER_THREAD)),
            attachments: Mutex::default(),
            gpu,
        })
    }

    /// The executor's GPU, or why it has none.
    pub fn gpu(&self) -> Result<&Arc<Gpu>, &NoGpu> {
        self.gpu.as_ref()
    }

    /// Bytes that queries may reserve together.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit
    }

    /// Bytes that queries may spill together.
    pub fn spill_limit(&self) -> u64 {
        self.spill_limit
    }

    /// Where they spill.
    pub fn spill_dir(&self) -> &Path {
        &self.spill_dir
    }

    /// The running queries.
    pub fn queries(&self) -> &Queries {
        &self.queries
    }

    /// How many query threads there are.
    pub fn query_threads(&self) -> usize {
        self.query_threads
    }

    /// The query threads.
    pub fn threads(&self) -> &Handle {
        &self.threads
    }

    /// Turns to plan a query.
    pub fn planning(&self) -> &Arc<Semaphore> {
        &self.planning
    }

    /// The node's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Makes a session for a new connection.
    pub fn open_session(self: &Arc<Self>, attach: Attach) -> Session {
        let traffic = Arc::new(Traffic::new(attach.attachment));
        self.attachments.lock().unwrap().insert(attach.attachment, Arc::clone(&traffic));
        let gpu = self.gpu().ok().map(|gpu| {
            GpuAttachment::new(
                gpu,
                format!("attachment {} (pid {})", attach.attachment, attach.pid),
            )
        });
        Session::new(Arc::clone(self), &self.template, attach, traffic, gpu)
    }

    /// Forgets a connection that has ended.
    pub fn close_session(&self, attachment: u64) {
        self.attachments.lock().unwrap().remove(&attachment);
    }

    /// How things stand.
    pub fn report(&self) -> Report {
        let attachments: Vec<AttachmentReport> =
            self.attachments.lock().unwrap().values().map(|traffic| traffic.report()).collect();
        Report {
            memory: self.memory(),
            attachments,
            queries: self.queries.report(),
            gpu: self.gpu().ok().map(|gpu| gpu.report()),
            gpu_unusable: match self.gpu() {
                Err(NoGpu::Unusable(reason)) => Some(reason.clone()),
                Ok(_) | Err(NoGpu::Cpu) => None,
            },
        }
    }

    fn memory(&self) -> MemoryReport {
        MemoryReport {
            limit: self.memory_limit,
            reserved: self.runtime.memory_pool.reserved() as u64,
            spilled: self.runtime.disk_manager.used_disk_space(),
            spill_limit: self.spill_limit,
        }
    }
}

/// Opens the executor's GPU. One that can't be used is no reason to serve nobody: queries run on the
/// CPU then, and say why.
fn open_gpu(
    start: &Start,
    settings: &Settings,
    engine: u64,
    threads: usize,
) -> Result<Arc<Gpu>, NoGpu> {
    if start.device == CPU {
        return Err(NoGpu::Cpu);
    }
    let available = memory::total();
    let process = |holder: &GpuHolder| Process {
        pid: holder.pid,
        name: holder.name.clone(),
        bytes: holder.bytes,
    };
    let host = Host {
        available,
        engine,
        // An agent that doesn't know how many there are has started this one at least.
        devices: start.gpus.max(1),
        tasks: threads as u64,
        holders: start.holders.iter().map(process).collect(),
    };
    Gpu::open(&start.device, settings, &host, &start.spill_dir).map_err(|error| {
        warn!("the GPU can't be used: {error}");
        NoGpu::Unusable(error.to_string())
    })
}

/// Where to spill. To DataFusion a limit of 0 is none; here it means that nothing may be spilled.
fn disk(directory: &Path, limit: u64) -> DiskManagerBuilder {
    if limit == 0 {
        return DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    }
    DiskManagerBuilder::default()
        .with_mode(DiskManagerMode::Directories(vec![directory.to_owned()]))
        .with_max_temp_directory_size(limit)
}

/// How many ways a query is split: `sql.target_partitions`, where 0 is one for each thread.
pub(crate) fn partitions(settings: &Settings, threads: usize) -> usize {
    match settings.sql_target_partitions {
        0 => threads,
        partitions => partitions,
    }
}
