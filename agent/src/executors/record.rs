//! What is known of an executor without asking it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::time::Instant;

use crate::api::ExecutorState;
use crate::clock;
use crate::connections::Place;
use crate::peer::Awaited;

/// How an executor stands; its supervisor writes it, the control API reads it.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Absent while it runs not and is not missed.
    pub(super) state: Option<ExecutorState>,
    /// When it came to that state.
    pub(super) since: u64,
    /// Its process.
    pub(super) pid: Option<u32>,
    /// Times that it ended unasked and was started again.
    pub(super) restarts: u64,
    /// Why it ended unasked the last time.
    pub(super) last_error: Option<String>,
    /// No start before that.
    pub(super) held_until: Option<Instant>,
    /// Its connections by number.
    pub(super) attachments: BTreeMap<u64, Attachment>,
}

/// A connection that an executor has. To drop it closes the agent's duplicate of it.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) uid: u32,
    pub(super) pid: i32,
    pub(super) container: Option<String>,
    pub(super) since: u64,
    /// The agent's own hold on the connection, to end it when executor or peer are gone.
    pub(super) socket: Arc<OwnedFd>,
    pub(super) _ended: Awaited,
    pub(super) _place: Place,
}

impl Record {
    /// It came to a state.
    pub(super) fn enter(&mut self, state: ExecutorState) {
        self.state = Some(state);
        self.since = clock::now();
        self.held_until = None;
    }

    /// It ended as it was told to.
    pub(super) fn leave(&mut self) {
        self.state = None;
        self.since = clock::now();
        self.pid = None;
    }

    /// Whether its process takes questions.
    pub(super) fn answers(&self) -> bool {
        matches!(self.state, Some(ExecutorState::Running | ExecutorState::Draining))
    }

    /// Its state now: a failed one may still have to wait.
    pub(super) fn state(&self, now: Instant) -> Option<ExecutorState> {
        match self.state {
            Some(ExecutorState::Failed) if self.held_until.is_some_and(|until| until > now) => {
                Some(ExecutorState::BackingOff)
            }
            state => state,
        }
    }
}
