//! A container's id as YARN writes it, and what it says of its application.

use std::fmt;
use std::str::FromStr;

use crate::peer::container::is_container_id;

/// `container_[eEPOCH_]CLUSTERTIME_APPLICATION_ATTEMPT_CONTAINER`
/// (`org.apache.hadoop.yarn.api.records.ContainerId`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

impl ContainerId {
    /// `application_CLUSTERTIME_APPLICATION`.
    pub fn application(&self) -> String {
        let [cluster, application, _] = self.fields();
        format!("application_{cluster}_{application}")
    }

    /// `appattempt_CLUSTERTIME_APPLICATION_ATTEMPT`; the attempt has six digits here, two in the
    /// container's id (`ApplicationAttemptId`).
    pub fn attempt(&self) -> String {
        let [cluster, application, attempt] = self.fields();
        format!("appattempt_{cluster}_{application}_{attempt:0>6}")
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Cluster's time, application and attempt: what stands before the container's own number.
    fn fields(&self) -> [&str; 3] {
        let mut fields = self.0.rsplit('_').skip(1);
        let mut next = || fields.next().unwrap_or_default();
        let (attempt, application, cluster) = (next(), next(), next());
        [cluster, application, attempt]
    }
}

impl FromStr for ContainerId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if is_container_id(text) { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_application_and_its_attempt() {
        for text in
            ["container_1796008661452_0001_02_000003", "container_e17_1796008661452_0001_02_000003"]
        {
            let id: ContainerId = text.parse().unwrap();
            assert_eq!(id.application(), "application_1796008661452_0001");
            assert_eq!(id.attempt(), "appattempt_1796008661452_0001_000002");
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_id_is_none() {
        for text in ["", "container_1_2_3", "container_1_2_3_4/../..", "application_1_2"] {
            assert!(text.parse::<ContainerId>().is_err(), "{text}");
        }
    }
}
