//! What the agent tells systemd (`sd_notify(3)`); without systemd, nobody.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

/// The agent takes connections.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// The agent reads its settings again; [`ready`] ends it. systemd wants to know since when
/// (`Type=notify-reload`).
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => warn!("systemd could not be told of the reload: {error}"),
    }
}

/// The agent ends.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Tells systemd over and over that the agent lives, if it wants to hear that; never returns.
///
/// It runs where the agent's signals are handled, so an agent that hangs falls silent.
pub async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| *limit > Duration::ZERO) else {
        return std::future::pending().await;
    };
    // systemd ends a service that says nothing for `limit`; half of it is what it advises.
    let mut tick = tokio::time::interval(limit / 2);
    loop {
        tick.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("systemd could not be told {state:?}: {error}");
    }
}
