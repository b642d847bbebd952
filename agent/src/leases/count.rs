//! How many devices a container is due: what YARN says, else what its job says, else one.

use super::lease::Source;
use crate::api::Hints;

/// How many, and what said so.
pub(super) type Due = (usize, Source);

/// How many by what the job says of itself, where YARN says nothing: `CREEL_GPUS`, Spark's own
/// configuration, the request, or one.
pub(super) fn by_job(hints: &Hints, asked: Option<u32>) -> Due {
    let sources = [
        (hints.creel_gpus, Source::CreelGpus),
        (hints.spark_gpus, Source::Spark),
        (asked, Source::Request),
    ];
    let found = sources.into_iter().find_map(|(count, source)| Some((count? as usize, source)));
    found.unwrap_or((1, Source::Default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_says_anything() {
        let hints = |creel_gpus, spark_gpus| Hints { creel_gpus, spark_gpus, visible: None };
        assert_eq!(by_job(&hints(Some(0), Some(2)), Some(3)), (0, Source::CreelGpus));
        assert_eq!(by_job(&hints(None, Some(2)), Some(3)), (2, Source::Spark));
        assert_eq!(by_job(&hints(None, None), Some(3)), (3, Source::Request));
        assert_eq!(by_job(&hints(None, None), None), (1, Source::Default));
    }
}
