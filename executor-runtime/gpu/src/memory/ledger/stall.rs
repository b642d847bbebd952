//! What happens when memory comes back, or somebody stops going on.

use super::{Doing, Kind, State, TaskState, Verdict};

impl State {
    pub(in crate::memory) fn task(&mut self, number: u64) -> &mut TaskState {
        self.tasks.get_mut(&number).expect("a task that lives")
    }

    /// To be called after every change that may let somebody go on, or leave nobody who does:
    /// memory came back, a permit did, a task waits, idles or has ended.
    pub(in crate::memory) fn settle(&mut self) {
        self.admit();
        self.grant_in_order();
        if self.all_wait(None) {
            self.break_stall(None);
        }
        let attachments: Vec<_> = self.attachments.keys().copied().collect();
        for attachment in attachments {
            if self.all_wait(Some(attachment)) {
                self.break_stall(Some(attachment));
            }
        }
    }

    /// Tells a task that waits what comes of it.
    pub(in crate::memory) fn tell(&mut self, number: u64, verdict: Verdict) {
        match verdict {
            Verdict::Retry => self.events.retries += 1,
            Verdict::Split => self.events.splits += 1,
            Verdict::Granted | Verdict::Cancelled => {}
        }
        let task = self.task(number);
        task.doing = Doing::Told(verdict);
        task.wake.notify_one();
    }

    /// Gives permits to the oldest tasks that wait for one, as far as there are.
    fn admit(&mut self) {
        let waiting: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, task)| matches!(task.doing, Doing::WaitsForPermit))
            .map(|(number, _)| *number)
            .collect();
        for number in waiting {
            // Nobody passes a large one that is older.
            if !self.permits.admit(number) {
                break;
            }
            self.tell(number, Verdict::Granted);
        }
    }

    /// Grants what fits to those who wait, the oldest first, and nothing to those behind one of
    /// the same kind that does not fit; where that is for its quota, behind it are only those of
    /// its attachment.
    fn grant_in_order(&mut self) {
        let (mut behind, mut behind_quota) = (Vec::new(), Vec::new());
        for (number, kind, bytes, attachment) in self.waiting() {
            if behind.contains(&kind) || behind_quota.contains(&(kind, attachment)) {
                continue;
            }
            if self.fits(kind, bytes, attachment) {
                self.grant(number, kind, bytes);
            } else if self.fits_quota(kind, bytes, attachment) {
                behind.push(kind);
            } else {
                behind_quota.push((kind, attachment));
            }
        }
    }

    fn grant(&mut self, number: u64, kind: Kind, bytes: u64) {
        let query = self.task(number).query;
        self.charge(query, Some(number), kind, bytes);
        self.tell(number, Verdict::Granted);
    }

    /// Those who wait for memory: task, kind, bytes, attachment; the oldest first.
    fn waiting(&self) -> Vec<(u64, Kind, u64, u64)> {
        let waiting = self.tasks.iter().filter_map(|(number, task)| match task.doing {
            Doing::WaitsForMemory { kind, bytes } => {
                Some((*number, kind, bytes, self.queries[&task.query].attachment))
            }
            _ => None,
        });
        waiting.collect()
    }

    /// Whether tasks wait, and none goes on that could give them what they wait for: of all
    /// tasks, or of an attachment whose tasks wait for its quota, which only they can give back.
    fn all_wait(&self, attachment: Option<u64>) -> bool {
        let mut any = false;
        for (number, task) in &self.tasks {
            let of = self.queries[&task.query].attachment;
            if attachment.is_some_and(|only| only != of) {
                continue;
            }
            match task.doing {
                Doing::Runs | Doing::Told(_) => return false,
                Doing::Idles => {}
                Doing::WaitsForPermit if attachment.is_some() => return false,
                Doing::WaitsForPermit => any = true,
                Doing::WaitsForMemory { kind, bytes } => {
                    if attachment.is_some() && self.others_can_help(*number, kind, bytes, of) {
                        return false;
                    }
                    any = true;
                }
            }
        }
        any
    }

    /// Whether a task waits for what other attachments may give back, too.
    fn others_can_help(&self, task: u64, kind: Kind, bytes: u64, attachment: u64) -> bool {
        let behind_others =
            || self.older(task, kind).any(|(bytes, of)| self.fits_quota(kind, bytes, of));
        self.fits_quota(kind, bytes, attachment)
            && (!self.fits(kind, bytes, attachment) || behind_others())
    }

    /// Lets one task go on when none does.
    fn break_stall(&mut self, attachment: Option<u64>) {
        let waiting: Vec<_> = self
            .waiting()
            .into_iter()
            .filter(|(.., of)| attachment.is_none_or(|only| only == *of))
            .collect();
        // Past an older one that does not fit: what this one gives back may make it fit.
        let fitting =
            waiting.iter().find(|(_, kind, bytes, of)| self.fits(*kind, *bytes, *of)).copied();
        if let Some((number, kind, bytes, _)) = fitting {
            return self.grant(number, kind, bytes);
        }
        let untold = waiting.iter().rev().find(|(number, ..)| !self.tasks[number].told);
        if let Some((number, ..)) = untold {
            let number = *number;
            self.task(number).told = true;
            return self.tell(number, Verdict::Retry);
        }
        let for_permit =
            self.tasks.iter().find(|(_, task)| matches!(task.doing, Doing::WaitsForPermit));
        if let Some((number, _)) = for_permit.filter(|_| attachment.is_none()) {
            let number = *number;
            self.permits.admit_beyond(number);
            self.events.permits_beyond += 1;
            return self.tell(number, Verdict::Granted);
        }
        // One that split and waits again could not help: before it is told once more, others are.
        let least_told = waiting.iter().rev().min_by_key(|(number, ..)| self.tasks[number].splits);
        if let Some((number, ..)) = least_told {
            let number = *number;
            let splits = &mut self.task(number).splits;
            *splits = splits.saturating_add(1);
            self.tell(number, Verdict::Split);
        }
    }
}
