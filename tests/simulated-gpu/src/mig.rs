//! Which MIG slices fit on a GPU, and where they come to lie.
//!
//! A GPU has 7 compute slices and 8 memory slices. A profile lies on consecutive memory slices
//! whose first is a multiple of their number (7g: only 0), as `nvidia-smi mig -lgipp` lists them;
//! single slices lie on 0 to 6. (MIG user guide, "Supported MIG Profiles".)

use crate::Error;
use crate::model::{MigProfile, Model};

/// A GPU instance with its one compute instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// What it is.
    pub profile: &'static MigProfile,
    /// First memory slice.
    pub start: u32,
    /// Id of the GPU instance: the driver numbers the whole GPU 0, its halves 1 and 2, its
    /// quarters 3 to 6 and its eighths 7 to 14.
    pub gpu_instance: u32,
    /// Id of the compute instance in it.
    pub compute_instance: u32,
}

/// Splits a layout such as `3x2g.10gb+1x1g.5gb` into slices in the order of their instance ids.
///
/// An empty layout is a GPU with MIG on and no slice.
pub fn place(model: &Model, layout: &str) -> Result<Vec<Slice>, Error> {
    let refuse = |reason: String| Error::Mig {
        model: model.name.to_owned(),
        layout: layout.to_owned(),
        reason,
    };
    if model.mig.is_empty() {
        return Err(refuse("the model has no MIG".to_owned()));
    }
    let mut profiles = Vec::new();
    for part in parts(layout) {
        let (count, name) = part
            .split_once('x')
            .ok_or_else(|| refuse(format!("'{part}' is not NxPROFILE, as 2x1g.5gb")))?;
        let count: u32 = count
            .parse()
            .ok()
            .filter(|count| (1..=7).contains(count))
            .ok_or_else(|| refuse(format!("'{count}' is no number of slices from 1 to 7")))?;
        let profile = model.mig_profile(name).ok_or_else(|| {
            let known: Vec<_> = model.mig.iter().map(|profile| profile.name).collect();
            refuse(format!("there is no profile '{name}', only {}", known.join(", ")))
        })?;
        profiles.extend(std::iter::repeat_n(profile, count as usize));
    }
    for profile in model.mig {
        let asked = profiles.iter().filter(|asked| asked.id == profile.id).count();
        if asked > profile.instances as usize {
            return Err(refuse(format!(
                "{asked} of {} don't fit, at most {} do",
                profile.name, profile.instances
            )));
        }
    }
    let compute: u32 = profiles.iter().map(|profile| profile.slices).sum();
    if compute > 7 {
        return Err(refuse(format!("it takes {compute} compute slices, a GPU has 7")));
    }
    // The largest first: they have the fewest places.
    profiles.sort_by_key(|profile| std::cmp::Reverse(profile.memory_slices));
    let mut starts = Vec::new();
    if !fit(&profiles, 0, &mut starts) {
        let memory: u32 = profiles.iter().map(|profile| profile.memory_slices).sum();
        return Err(refuse(format!(
            "its slices don't fit beside each other: they take {memory} of 8 memory slices"
        )));
    }
    let mut slices: Vec<_> = profiles
        .into_iter()
        .zip(starts)
        .map(|(profile, start)| Slice {
            profile,
            start,
            gpu_instance: 8 / profile.memory_slices - 1 + start / profile.memory_slices,
            compute_instance: 0,
        })
        .collect();
    slices.sort_by_key(|slice| slice.gpu_instance);
    Ok(slices)
}

/// Splits a layout at its plus signs, but for that of a profile such as `1g.5gb+me`.
fn parts(layout: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in layout.split('+').filter(|_| !layout.is_empty()) {
        match parts.last_mut() {
            Some(profile) if part == "me" => profile.push_str("+me"),
            _ => parts.push(part.to_owned()),
        }
    }
    parts
}

/// Finds a start for each profile such that none overlap, by trying.
fn fit(profiles: &[&MigProfile], taken: u8, starts: &mut Vec<u32>) -> bool {
    let Some((profile, rest)) = profiles.split_first() else { return true };
    let size = profile.memory_slices;
    let last = if size == 1 { 6 } else { 8 - size };
    for start in (0..=last).step_by(size as usize) {
        let mask = (((1_u16 << size) - 1) << start) as u8;
        if taken & mask == 0 {
            starts.push(start);
            if fit(rest, taken | mask, starts) {
                return true;
            }
            starts.pop();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_on(model: &str, layout: &str) -> Result<Vec<(u32, &'static str)>, String> {
        place(Model::find(model).unwrap(), layout)
            .map(|slices| slices.iter().map(|s| (s.gpu_instance, s.profile.name)).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn layouts_that_fit() {
        assert_eq!(
            place_on("a100", "3x2g.10gb+1x1g.5gb").unwrap(),
            [(3, "2g.10gb"), (4, "2g.10gb"), (5, "2g.10gb"), (13, "1g.5gb")]
        );
        assert_eq!(place_on("h200", "1x4g.71gb+1x3g.71gb").unwrap().len(), 2);
        assert_eq!(place_on("b200", "7x1g.23gb").unwrap().len(), 7);
        assert_eq!(place_on("h100", "1x7g.80gb").unwrap(), [(0, "7g.80gb")]);
        assert_eq!(
            place_on("a100", "1x1g.5gb+me+1x3g.20gb").unwrap(),
            [(1, "3g.20gb"), (11, "1g.5gb+me")]
        );
        assert_eq!(place_on("a100", "").unwrap(), []);
    }

    #[test]
    fn layouts_that_dont() {
        for (model, layout, why) in [
            ("a100", "8x1g.5gb", "from 1 to 7"),
            ("a100", "4x2g.10gb", "at most 3"),
            ("a100", "2x3g.20gb+1x1g.5gb", "memory slices"),
            ("a100", "1x4g.20gb+2x2g.10gb", "8 compute slices"),
            ("a100", "1x7g.40gb+1x1g.5gb", "8 compute slices"),
            ("a100", "1x3g.71gb", "no profile"),
            ("a100", "3g.20gb", "NxPROFILE"),
            ("a100", "1x3g.20gb+", "NxPROFILE"),
            ("a100", "me+1x1g.5gb", "NxPROFILE"),
            ("a100", "2x1g.5gb+me", "at most 1"),
            ("t4", "1x1g.5gb", "no MIG"),
        ] {
            let error = place_on(model, layout).unwrap_err();
            assert!(error.contains(why), "{model} {layout}: {error}");
        }
    }
}
