//! Where the daemons' web services are.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Port of the ResourceManager's web services (`yarn.resourcemanager.webapp.address`).
const RESOURCE_MANAGER_PORT: u16 = 8088;
/// Port of the NodeManager's (`yarn.nodemanager.webapp.address`).
const NODE_MANAGER_PORT: u16 = 8042;

/// A daemon's web address: `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Name or number, an IPv6 number without its brackets.
    pub host: String,
    /// The port; 0 where the daemon chooses one itself.
    pub port: u16,
}

/// The web addresses of the daemons of this node's cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The ResourceManagers, of which one is active; empty: nobody says where.
    pub resource_managers: Vec<Address>,
    /// The NodeManager of this node; absent: only the ResourceManager knows its port.
    pub node_manager: Option<Address>,
}

impl Addresses {
    /// The addresses of settings, and where those are empty, of the Hadoop configuration.
    ///
    /// `rm_urls` and `nm_url` are `yarn.resourcemanager_url` (several with commas
    /// between them) and `yarn.nodemanager_url`; `value` gives a property's effective value, with
    /// its variables put in. The keys are those of `YarnConfiguration` and `HAUtil`.
    pub fn find(
        rm_urls: &str,
        nm_url: &str,
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let value = |key: &str| value(key).map(|text| text.trim().to_owned());
        let value = |key: &str| value(key).filter(|text| !text.is_empty());
        let https = value("yarn.http.policy").is_some_and(|policy| policy == "HTTPS_ONLY");
        let resource_managers = match list(rm_urls) {
            urls if urls.is_empty() => configured_resource_managers(&value, https)?,
            urls => urls.into_iter().map(Address::from_str).collect::<Result<_, _>>()?,
        };
        let node_manager = match nm_url.trim() {
            "" => configured_node_manager(&value, https)?,
            url => Some(url.parse()?),
        };
        Ok(Self { resource_managers, node_manager })
    }
}

fn configured_resource_managers(
    value: &impl Fn(&str) -> Option<String>,
    https: bool,
) -> Result<Vec<Address>, Error> {
    let of = |suffix: &str| -> Result<Option<Address>, Error> {
        let key = format!("yarn.resourcemanager.webapp.address{suffix}");
        let host = value(&format!("yarn.resourcemanager.hostname{suffix}"));
        let address = match (value(&key), host) {
            (Some(address), _) => Address::with_default_port(&address, RESOURCE_MANAGER_PORT)?,
            // 0.0.0.0 is the default, and says nothing.
            (None, Some(host)) if host != "0.0.0.0" => {
                Address { host, port: RESOURCE_MANAGER_PORT }
            }
            _ => return Ok(None),
        };
        if https { Err(Error::YarnHttps(key)) } else { Ok(Some(address.connectable())) }
    };
    if value("yarn.resourcemanager.ha.enabled").as_deref() != Some("true") {
        return Ok(of("")?.into_iter().collect());
    }
    let ids = value("yarn.resourcemanager.ha.rm-ids").unwrap_or_default();
    let found =
        list(&ids).into_iter().map(|id| of(&format!(".{id}"))).collect::<Result<Vec<_>, _>>();
    Ok(found?.into_iter().flatten().collect())
}

/// The NodeManager's default is to listen on every address of the node.
fn configured_node_manager(
    value: &impl Fn(&str) -> Option<String>,
    https: bool,
) -> Result<Option<Address>, Error> {
    const KEY: &str = "yarn.nodemanager.webapp.address";
    let address = match value(KEY) {
        Some(address) => Address::with_default_port(&address, NODE_MANAGER_PORT)?,
        None => Address {
            host: value("yarn.nodemanager.hostname").unwrap_or_else(|| "0.0.0.0".to_owned()),
            port: NODE_MANAGER_PORT,
        },
    };
    if https {
        return Err(Error::YarnHttps(KEY.to_owned()));
    }
    Ok((address.port != 0).then(|| address.connectable()))
}

fn list(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

impl Address {
    /// Reads `host:port`, `http://host:port` or a host alone.
    pub fn with_default_port(text: &str, default: u16) -> Result<Self, Error> {
        let wrong =
            |reason: &str| Error::YarnAddress { text: text.to_owned(), reason: reason.to_owned() };
        let rest = match text.trim().split_once("://") {
            None => text.trim(),
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(Error::YarnHttps(text.to_owned())),
            Some(_) => return Err(wrong("only http:// is spoken")),
        };
        let authority: ::http::uri::Authority =
            rest.trim_end_matches('/').parse().map_err(|_| wrong("it is no host and port"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(wrong("it is no host and port"));
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => default,
            port => port
                .and_then(|port| port.strip_prefix(':')?.parse().ok())
                .ok_or_else(|| wrong("its port is no port"))?,
        };
        Ok(Self { host: host.to_owned(), port })
    }

    /// Where to connect to a daemon that listens on every address of this node.
    fn connectable(mut self) -> Self {
        match self.host.as_str() {
            "0.0.0.0" => "127.0.0.1".clone_into(&mut self.host),
            "::" => "::1".clone_into(&mut self.host),
            _ => {}
        }
        self
    }

    /// `host:port`, as the `Host` header has it.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Reads `http://host:port` or `host:port`; without a port, HTTP's own.
    fn from_str(text: &str) -> Result<Self, Error> {
        Self::with_default_port(text, 80)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(properties: &[(&str, &str)]) -> Result<Addresses, Error> {
        Addresses::find("", "", |key| {
            let found = properties.iter().find(|(name, _)| *name == key);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(addresses: &Addresses) -> (Vec<String>, Option<String>) {
        (
            addresses.resource_managers.iter().map(ToString::to_string).collect(),
            addresses.node_manager.as_ref().map(ToString::to_string),
        )
    }

    #[test]
    fn an_empty_configuration_says_where_the_node_manager_is_and_nothing_else() {
        let found = find(&[]).unwrap();
        assert_eq!(shown(&found), (vec![], Some("http://127.0.0.1:8042".into())));
    }

    #[test]
    fn a_host_is_enough() {
        let found = find(&[
            ("yarn.resourcemanager.hostname", "master"),
            ("yarn.nodemanager.hostname", "worker-7"),
        ]);
        let expected = (vec!["http://master:8088".into()], Some("http://worker-7:8042".into()));
        assert_eq!(shown(&found.unwrap()), expected);
    }

    #[test]
    fn each_resource_manager_of_several_has_its_own() {
        let found = find(&[
            ("yarn.resourcemanager.ha.enabled", "true"),
            ("yarn.resourcemanager.ha.rm-ids", " rm1, rm2,rm3 "),
            ("yarn.resourcemanager.hostname.rm1", "a"),
            ("yarn.resourcemanager.webapp.address.rm2", "b:23188"),
            ("yarn.nodemanager.webapp.address", "0.0.0.0:0"),
        ]);
        let expected = (vec!["http://a:8088".into(), "http://b:23188".into()], None);
        assert_eq!(shown(&found.unwrap()), expected);
    }

    #[test]
    fn settings_go_before_the_configuration() {
        let value = |_: &str| Some("other:1".to_owned());
        let found = Addresses::find("http://a:1/, b:2", "[::1]:3", value).unwrap();
        let expected =
            (vec!["http://a:1".into(), "http://b:2".into()], Some("http://[::1]:3".into()));
        assert_eq!(shown(&found), expected);
    }

    #[test]
    fn https_is_said_not_to_be_spoken() {
        let error = Addresses::find("https://a:8090", "", |_| None).unwrap_err();
        assert!(error.to_string().contains("HTTPS"), "{error}");
        let error =
            find(&[("yarn.http.policy", "HTTPS_ONLY"), ("yarn.resourcemanager.hostname", "a")]);
        assert!(matches!(error, Err(Error::YarnHttps(_))), "{error:?}");
    }

    #[test]
    fn what_is_no_address_is_refused_by_name() {
        for text in ["ftp://a", "a:b", "a:99999", "http://", "http://u@h:1", "a b", "/x"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.to_string().contains(text), "{text}: {error}");
        }
    }
}
