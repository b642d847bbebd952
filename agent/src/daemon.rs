//! The life of `creeld`: start, reload, drain, end.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use creel_settings::{Settings, Sources};
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::control::{self, Control};
use crate::data::{self, Doorman};
use crate::error::Error;
use crate::executors::Executors;
use crate::gpus::Gpus;
use crate::leases::Leases;
use crate::lock::Lock;
use crate::logging::Log;
use crate::peer::Looks;
use crate::run_dir::RunDir;
use crate::service;
use crate::socket::Socket;
use crate::state_dir::StateDir;
use crate::yarn::{manage, resource};

/// How the daemon is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The settings file, instead of the node's.
    pub config: Option<PathBuf>,
    /// The run directory, instead of [`RunDir::resolve`]'s choice.
    pub run_dir: Option<PathBuf>,
    /// Settings over those of file and environment.
    pub settings: Vec<(String, String)>,
}

/// Runs the agent until it is told to end.
pub fn run(options: &Options) -> Result<(), Error> {
    let settings = load(options)?;
    let log = Log::start(settings.agent_log_format, &settings.agent_log_level)?;
    let run_dir = RunDir::resolve(options.run_dir.clone())?;
    make(run_dir.path())?;
    let state_dir = StateDir::resolve(&settings.agent_state_dir)?;
    let _lock = Lock::take(run_dir.path())?;
    raise_descriptor_limit();
    if let Err(error) = state_dir.make() {
        warn!("nothing outlives the agent: {error}");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(64)
        .enable_all()
        .build()
        .map_err(|source| Error::System { what: "start threads", source })?;
    let outcome = runtime.block_on(live(options, settings, &log, &run_dir, &state_dir));
    // A look into `/proc` or at a driver may hang for good.
    runtime.shutdown_background();
    outcome
}

async fn live(
    options: &Options,
    settings: Settings,
    log: &Log,
    run_dir: &RunDir,
    state_dir: &StateDir,
) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let (settings, watched) = watch::channel(Arc::new(settings));
    let gpus = Gpus::start(watched.clone(), run_dir, state_dir);
    let executors = Executors::new(watched.clone(), gpus.clone())
        .map_err(|source| Error::System { what: "watch processes", source })?;
    let executors = Arc::new(executors);
    tokio::spawn(resource::keep(watched.clone(), gpus.clone(), state_dir.path().to_owned()));
    manage::start(watched.clone(), &gpus);
    let leases = Leases::start(state_dir.path(), gpus.clone(), watched.clone())?;
    let control =
        Control::new(watched.clone(), Arc::clone(&executors), gpus.clone(), leases.clone());
    let control = Arc::new(control);

    let agent_socket = Socket::bind(run_dir.agent_socket())?;
    let data_socket = Socket::bind(run_dir.data_socket())?;
    let looks = Looks::default();
    let controlling =
        tokio::spawn(control::serve(agent_socket, Arc::clone(&control), looks.clone()));
    let doorman =
        Doorman { executors: Arc::clone(&executors), gpus, leases, settings: watched, looks };
    let accepting = tokio::spawn(data::serve_all(data_socket, run_dir.clone(), doorman));
    control.ready.store(true, Ordering::Relaxed);
    service::ready();
    info!(
        pid = std::process::id(),
        "creeld {} listens in {}",
        env!("CARGO_PKG_VERSION"),
        run_dir.path().display()
    );
    if !rustix::process::geteuid().is_root() {
        let uid = rustix::process::geteuid().as_raw();
        info!("creeld runs without root: it serves its own user ({uid}) alone");
    }

    let mut watchdog = std::pin::pin!(service::watchdog());
    let name = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::Reload => reload(options, &settings, log),
                Told::End(name) => break name,
            },
            () = &mut watchdog => {}
        }
    };

    info!("{name}: the agent stops");
    control.ready.store(false, Ordering::Relaxed);
    service::stopping();
    accepting.abort();
    let _ = accepting.await;
    let patience = settings.borrow().agent_drain_timeout;
    tokio::select! {
        () = executors.drain("the agent stops", patience) => info!("all executors have ended"),
        name = signals.end() => warn!("{name} again: the agent ends at once"),
    }
    controlling.abort();
    let _ = controlling.await;
    Ok(())
}

/// What a signal means.
enum Told {
    Reload,
    /// And the signal's name.
    End(&'static str),
}

/// The signals that the agent knows.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let on = |kind| {
            signal(kind).map_err(|source| Error::System { what: "wait for signals", source })
        };
        Ok(Self {
            hangup: on(SignalKind::hangup())?,
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.hangup.recv() => Told::Reload,
            _ = self.terminate.recv() => Told::End("SIGTERM"),
            _ = self.interrupt.recv() => Told::End("SIGINT"),
        }
    }

    /// Waits for the next signal to end, and gives its name.
    async fn end(&mut self) -> &'static str {
        loop {
            if let Told::End(name) = self.next().await {
                return name;
            }
        }
    }
}

/// Reads all settings.
fn load(options: &Options) -> Result<Settings, Error> {
    let sources = Sources::of_process(options.config.clone(), options.settings.clone());
    Ok(Settings::load(&sources)?.settings)
}

/// Reads all settings again. With a mistake in any, all stay as they are.
fn reload(options: &Options, settings: &watch::Sender<Arc<Settings>>, log: &Log) {
    service::reloading();
    let loaded = load(options).and_then(|settings| {
        log.set_level(&settings.agent_log_level)?;
        Ok(settings)
    });
    match loaded {
        Ok(new) => {
            if new.agent_log_format != settings.borrow().agent_log_format {
                warn!("agent.log_format changes when the agent starts again");
            }
            settings.send_replace(Arc::new(new));
            info!("the settings are read again; executors that run keep theirs");
        }
        Err(Error::Settings(mistakes)) => {
            for mistake in mistakes.each() {
                error!("the settings stay as they were: {mistake}");
            }
        }
        Err(other) => error!("the settings stay as they were: {other}"),
    }
    service::ready();
}

/// Makes the run directory, which anyone may enter.
fn make(run_dir: &Path) -> Result<(), Error> {
    let make = || -> io::Result<()> {
        if run_dir.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o755).create(run_dir)?;
        // Whatever the umask.
        std::fs::set_permissions(run_dir, Permissions::from_mode(0o755))
    };
    make().map_err(|source| Error::RunDir { path: run_dir.to_owned(), source })
}

/// Every attachment holds two descriptors, and shells start daemons with 1024.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        warn!("the limit on descriptors stays at {:?}: {error}", limit.current);
    }
}
