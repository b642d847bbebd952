//! How many devices a container is due, and which are in its reach.
//!
//! How many, by the first that says it: YARN; the job, by `CREEL_GPUS` or by Spark's
//! configuration; the request; nobody, and then it is one. Which: where YARN assigns GPUs itself,
//! those alone.

use super::assign::Want;
use super::lease::Source;
use super::yarn::Allotment;
use crate::api::Hints;
use crate::gpus::Unit;

/// What is known of a container's GPUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    /// What YARN says.
    pub(super) yarn: &'a Allotment,
    /// Minor numbers of the GPUs that its control group denies it; empty: it isolates nothing.
    pub(super) denied: &'a [u32],
    /// What it says itself.
    pub(super) hints: &'a Hints,
    /// How many it asks for.
    pub(super) asked: Option<u32>,
}

/// What a container is due on a node of these devices, and what said so.
pub(super) fn due(units: &[Unit], known: &Known<'_>) -> (Want, Source) {
    let Known { yarn, denied, hints, asked } = *known;
    if !denied.is_empty() {
        // What it can open is its own. Of a GPU in slices it can open all of them.
        let is_open = |unit: &&Unit| unit.minor.is_none_or(|minor| !denied.contains(&minor));
        let open = uuids(units.iter().filter(is_open));
        let count = yarn.count.map_or(open.len(), |count| count.min(open.len()));
        return (Want { count, among: Some(open) }, Source::Cgroup);
    }
    if let Some(places) = &yarn.assigned {
        let is_at = |unit: &&Unit| {
            places.iter().any(|(place, minor)| {
                unit.address == *place && minor.is_none_or(|minor| unit.minor == Some(minor))
            })
        };
        // One whose place or minor number is no longer the same is missed, and waited for.
        let among = Some(uuids(units.iter().filter(is_at)));
        return (Want { count: places.len(), among }, Source::NodeManager);
    }
    let (count, source) = count(yarn.count, hints, asked);
    (Want { count, among: visible(units, hints) }, source)
}

fn count(yarn: Option<usize>, hints: &Hints, asked: Option<u32>) -> (usize, Source) {
    let said = |count: Option<u32>| count.map(|count| count as usize);
    let sources = [
        (yarn, Source::ResourceManager),
        (said(hints.creel_gpus), Source::CreelGpus),
        (said(hints.spark_gpus), Source::Spark),
        (said(asked), Source::Request),
    ];
    let found = sources.into_iter().find_map(|(count, source)| Some((count?, source)));
    found.unwrap_or((1, Source::Default))
}

/// What a container that does not see all devices sees: it may choose among fewer. How many it
/// gets is no matter of that.
fn visible(units: &[Unit], hints: &Hints) -> Option<Vec<String>> {
    let visible = hints.visible.as_ref().filter(|visible| !visible.is_empty())?;
    let is_seen = |unit: &&Unit| unit.uuid.as_ref().is_some_and(|uuid| visible.contains(uuid));
    let seen = uuids(units.iter().filter(is_seen));
    (!seen.is_empty() && seen.len() < units.len()).then_some(seen)
}

fn uuids<'a>(units: impl Iterator<Item = &'a Unit>) -> Vec<String> {
    units.filter_map(|unit| unit.uuid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units() -> Vec<Unit> {
        let unit = |address, minor| Unit {
            address,
            uuid: Some(format!("U{address}")),
            minor: Some(minor),
            usable: true,
            ..Unit::default()
        };
        // The second GPU is in two slices.
        vec![unit(0, 0), unit(1, 1), unit(2, 1), unit(3, 2)]
    }

    fn of(yarn: &Allotment, denied: &[u32], hints: &Hints, asked: Option<u32>) -> (Want, Source) {
        due(&units(), &Known { yarn, denied, hints, asked })
    }

    fn among(count: usize, uuids: &[&str]) -> Want {
        Want { count, among: Some(uuids.iter().map(|uuid| (*uuid).to_owned()).collect()) }
    }

    const NONE: Allotment = Allotment { count: None, assigned: None };

    #[test]
    fn the_first_that_says_how_many() {
        let two = Allotment { count: Some(2), ..NONE };
        let hints = |creel_gpus, spark_gpus| Hints { creel_gpus, spark_gpus, visible: None };
        let any = |count, source| (Want::any(count), source);
        let all = hints(Some(0), Some(3));
        assert_eq!(of(&two, &[], &all, Some(4)), any(2, Source::ResourceManager));
        assert_eq!(of(&NONE, &[], &all, Some(4)), any(0, Source::CreelGpus));
        assert_eq!(of(&NONE, &[], &hints(None, Some(3)), Some(4)), any(3, Source::Spark));
        assert_eq!(of(&NONE, &[], &hints(None, None), Some(4)), any(4, Source::Request));
        assert_eq!(of(&NONE, &[], &hints(None, None), None), any(1, Source::Default));
    }

    #[test]
    fn what_a_container_can_open_is_its_own() {
        let hints = Hints { creel_gpus: Some(9), ..Hints::default() };
        let cgroup = |want| (want, Source::Cgroup);
        assert_eq!(of(&NONE, &[1, 2], &hints, None), cgroup(among(1, &["U0"])));
        assert_eq!(of(&NONE, &[0, 1, 2], &hints, None), cgroup(among(0, &[])));
        let one = Allotment { count: Some(1), ..NONE };
        assert_eq!(of(&one, &[0, 2], &hints, None), cgroup(among(1, &["U1", "U2"])));
    }

    #[test]
    fn what_the_node_manager_assigned() {
        let of = |places: &[(u32, Option<u32>)]| {
            let yarn = Allotment { count: Some(9), assigned: Some(places.to_vec()) };
            of(&yarn, &[], &Hints::default(), None)
        };
        assert_eq!(of(&[(3, Some(2))]), (among(1, &["U3"]), Source::NodeManager));
        assert_eq!(of(&[(1, None), (0, Some(0))]), (among(2, &["U0", "U1"]), Source::NodeManager));
        assert_eq!(of(&[]), (among(0, &[]), Source::NodeManager));
        // Another GPU is in its place now.
        assert_eq!(of(&[(3, Some(7))]), (among(1, &[]), Source::NodeManager));
    }

    #[test]
    fn who_sees_less_chooses_among_less() {
        let sees = |uuids: &[&str]| {
            let visible = Some(uuids.iter().map(|uuid| (*uuid).to_owned()).collect());
            of(&NONE, &[], &Hints { visible, ..Hints::default() }, None).0
        };
        assert_eq!(sees(&["U3", "U2", "X"]), among(1, &["U2", "U3"]));
        for all_or_nothing in [&["U0", "U1", "U2", "U3"][..], &[], &["X"]] {
            assert_eq!(sees(all_or_nothing), Want::any(1));
        }
    }
}
