//! Steps that are taken again when memory runs out, with the same input or with halves of it.
//!
//! ```text
//!            ┌──────────── Retry: what the step took is given back ◀──┐
//!            ▼                                                        │
//!   inputs ▶ step ──▶ output                                          │
//!            │ └──────────────────────────────────────────────────────┘
//!            └ Split: the input becomes two, in its place; what can't is tried once more
//! ```
//!
//! A step must be such that it can be taken again: it only reads its input, and what it took it
//! gives back when it fails, as buffers do that are dropped. Its input should be
//! [spillable](super::spill), and be asked for inside the step, so that it can leave the device
//! between two attempts. A step that changes something which lives longer says how that is undone
//! ([`with_restore`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::{MemoryError, Recovery};
use super::ledger::Task;

/// Attempts without an output, after which something must be wrong.
const ATTEMPTS: usize = 500;

/// An error that says what is to be done about it.
pub trait Recover: Sized {
    /// What the caller may do.
    fn recovery(&self) -> Recovery;

    /// The error of a step that wants a smaller input, and there is none.
    #[must_use]
    fn cannot_split(self, reason: &'static str) -> Self;

    /// The error of a step that was taken too often.
    #[must_use]
    fn too_many(self, attempts: usize) -> Self;
}

impl Recover for MemoryError {
    fn recovery(&self) -> Recovery {
        self.recovery()
    }

    fn cannot_split(self, reason: &'static str) -> Self {
        Self::CannotSplit { refusal: Box::new(self), reason }
    }

    fn too_many(self, attempts: usize) -> Self {
        Self::TooManyRetries(attempts, Box::new(self))
    }
}

/// An input that can become two, whose outputs together are those of the whole.
pub trait Split: Sized {
    /// Why there are no halves, for the message; `None` if there are.
    fn indivisible(&self) -> Option<&'static str>;

    /// Both halves in order, if there are any.
    fn split(self) -> [Self; 2];
}

/// How often steps were taken again.
#[derive(Debug, Default)]
pub struct Attempts {
    retries: AtomicU64,
    splits: AtomicU64,
}

impl Attempts {
    /// With the same input.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// With halves of it.
    pub fn splits(&self) -> u64 {
        self.splits.load(Ordering::Relaxed)
    }
}

/// Takes a step for an input, or for the parts that it must be split into; the outputs in order.
pub fn with_retry<I: Split, O, E: Recover>(
    task: &Task,
    attempts: &Attempts,
    input: I,
    mut step: impl FnMut(&I) -> Result<O, E>,
) -> Result<Vec<O>, E> {
    let mut inputs = VecDeque::from([input]);
    let mut outputs = Vec::new();
    let (mut again, mut is_last_try) = (0, false);
    while let Some(input) = inputs.pop_front() {
        let error = match step(&input) {
            Ok(output) => {
                outputs.push(output);
                task.progressed();
                (again, is_last_try) = (0, false);
                continue;
            }
            Err(error) => error,
        };
        again += 1;
        match error.recovery() {
            Recovery::Retry | Recovery::Split if again >= ATTEMPTS => {
                return Err(error.too_many(again));
            }
            Recovery::Retry => {
                attempts.retries.fetch_add(1, Ordering::Relaxed);
                inputs.push_front(input);
            }
            Recovery::Split => match input.indivisible() {
                None => {
                    attempts.splits.fetch_add(1, Ordering::Relaxed);
                    let [first, second] = input.split();
                    inputs.push_front(second);
                    inputs.push_front(first);
                }
                // What was short may be there now: others give back too.
                Some(_) if !is_last_try => {
                    attempts.retries.fetch_add(1, Ordering::Relaxed);
                    is_last_try = true;
                    task.on_last_try();
                    inputs.push_front(input);
                }
                Some(reason) => return Err(error.cannot_split(reason)),
            },
            Recovery::Fail | Recovery::Restart => return Err(error),
        }
    }
    Ok(outputs)
}

/// Takes a step that has no smaller form.
pub fn with_retry_no_split<O, E: Recover>(
    task: &Task,
    attempts: &Attempts,
    step: impl FnMut() -> Result<O, E>,
) -> Result<O, E> {
    struct Whole<F>(std::cell::RefCell<F>);
    impl<F> Split for Whole<F> {
        fn indivisible(&self) -> Option<&'static str> {
            Some("the step has no smaller form")
        }

        fn split(self) -> [Self; 2] {
            unreachable!("what is indivisible is not split")
        }
    }
    let whole = Whole(std::cell::RefCell::new(step));
    let mut outputs = with_retry(task, attempts, whole, |whole| (whole.0.borrow_mut())())?;
    Ok(outputs.pop().expect("one input has one output"))
}

/// What a step may change, and change back.
pub trait Restore {
    /// What it was.
    type Saved;

    /// Remembers what it is. No memory may be needed for that.
    fn save(&self) -> Self::Saved;

    /// Makes it what it was.
    fn restore(&mut self, saved: &Self::Saved);
}

/// Takes one attempt of a step, and undoes it if it fails: to be used inside
/// [`with_retry`].
pub fn with_restore<S: Restore, O, E>(
    state: &mut S,
    step: impl FnOnce(&mut S) -> Result<O, E>,
) -> Result<O, E> {
    let saved = state.save();
    step(state).inspect_err(|_| state.restore(&saved))
}

#[cfg(test)]
mod tests;
