//! What a machine is to YARN.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// What a process on a machine is to YARN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Schedules: has to know the resource type, and to count by it.
    #[serde(rename = "rm")]
    ResourceManager,
    /// Runs containers: has to find the node's GPUs.
    #[serde(rename = "nm")]
    NodeManager,
    /// Submits applications, or is their master: has to know the resource type.
    #[serde(rename = "client")]
    Client,
}

impl Role {
    /// All of them, in the order in which a cluster is brought to GPUs.
    pub const ALL: [Self; 3] = [Self::ResourceManager, Self::NodeManager, Self::Client];

    /// The role's short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResourceManager => "rm",
            Self::NodeManager => "nm",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a machine is to YARN: at least one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Roles(BTreeSet<Role>);

impl Roles {
    /// Every role.
    pub fn all() -> Self {
        Self(Role::ALL.into())
    }

    /// Whether the machine has the role.
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// The roles.
    pub fn iter(&self) -> impl Iterator<Item = Role> {
        self.0.iter().copied()
    }

    /// Whether every role of this one is one of the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl<const N: usize> From<[Role; N]> for Roles {
    fn from(roles: [Role; N]) -> Self {
        Self(roles.into())
    }
}

impl FromStr for Roles {
    type Err = Error;

    /// Reads `rm`, `nm,client`, `all`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut roles = BTreeSet::new();
        for word in text.split(',').map(str::trim) {
            if word == "all" {
                roles.extend(Role::ALL);
            } else {
                let role = Role::ALL.into_iter().find(|role| role.name() == word);
                roles.insert(role.ok_or_else(|| Error::Role(word.to_owned()))?);
            }
        }
        Ok(Self(roles))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Role::name).collect();
        f.pad(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_named_alone_together_or_all_at_once() {
        for (text, roles) in [
            ("nm", "nm"),
            ("client, nm", "nm,client"),
            ("all", "rm,nm,client"),
            ("nm,all", "rm,nm,client"),
        ] {
            assert_eq!(text.parse::<Roles>().unwrap().to_string(), roles);
        }
        for text in ["", "nm,", "master", "NM"] {
            assert!(text.parse::<Roles>().is_err(), "{text}");
        }
    }
}
