//! When a lease ends: when its holder is gone.
//!
//! The kernel tells when a process ends (pidfd), whoever killed it and whoever waits for it. When
//! the last process of a holder that is known has ended, `/proc` is looked through for what is
//! left of it, in its session or control group; that is waited for in turn. So a container whose
//! launch script was killed holds its GPUs until its last process has gone, and not longer.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use super::Leases;
use super::holder::Holder;
use crate::peer::{Awaited, Proc, ProcessId};

/// How often all holders are looked at besides: should the kernel ever fail to tell.
const ROUND: Duration = Duration::from_secs(5);

/// Ends leases as their holders go, for ever.
pub(super) async fn follow(leases: Leases, mut ended: mpsc::UnboundedReceiver<u64>) {
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            number = ended.recv() => match number {
                Some(number) => leases.reassess(number).await,
                None => return,
            },
            _ = round.tick() => {
                for number in leases.numbers() {
                    leases.reassess(number).await;
                }
                leases.reassess_doubt().await;
            }
        }
    }
}

impl Leases {
    /// Ends a lease if its holder is gone, else waits for the end of what lives of it.
    pub(super) async fn reassess(&self, number: u64) {
        let Some(holder) = self.holder(number) else { return };
        let Some(living) = living(&self.shared.proc, holder).await else { return };
        if living.is_empty() {
            self.end(number, "its holder is gone");
        } else if let Some(vanished) = self.watch(number, &living) {
            warn!("process {vanished} can't be watched; it is looked at every {ROUND:?}");
        }
    }

    /// Waits for the end of processes; the answer is one for which that is not possible.
    fn watch(&self, number: u64, living: &[ProcessId]) -> Option<i32> {
        let mut failed = None;
        let mut awaited = Vec::new();
        for process in living {
            match self.await_end(number, *process) {
                Some(waits) => awaited.push(waits),
                None => failed = Some(process.pid),
            }
        }
        self.set_awaited(number, awaited);
        failed
    }

    fn await_end(&self, number: u64, process: ProcessId) -> Option<Awaited> {
        let pidfd = pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::NONBLOCK).ok();
        let again = self.shared.ended.clone();
        let Some(pidfd) = pidfd else {
            // It has ended just now.
            let _ = again.send(number);
            return None;
        };
        // If the number has passed to another one meanwhile, this one has ended.
        if self.shared.proc.stat(process.pid).map(|stat| stat.process).ok() != Some(process) {
            let _ = again.send(number);
            return None;
        }
        let tell = move || {
            let _ = again.send(number);
        };
        self.shared.ends.when_ended(pidfd, tell).ok()
    }
}

/// Which processes of a holder live; `None` where that can't be told now.
pub(super) async fn living(proc: &Proc, holder: Holder) -> Option<Vec<ProcessId>> {
    let proc = proc.clone();
    // A process may make reads of its part of `/proc` wait.
    tokio::task::spawn_blocking(move || holder.living(&proc)).await.ok()?.ok()
}
