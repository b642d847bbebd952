//! The clients of YARN's web services, against what real daemons said and what bad ones may.

use std::time::{Duration, Instant};

use creel_agent::error::Error;
use creel_agent::yarn::container_id::ContainerId;
use creel_agent::yarn::rest::{ContainerState, NodeManager, ResourceManager, Trouble};

use crate::web::{Behaviour, Web, json, recorded, response};

const VERSIONS: [&str; 2] = ["3.3.6", "3.5.0"];
/// More than any answer here needs.
const PATIENCE: Duration = Duration::from_mins(1);

fn resource_manager(webs: &[&Web]) -> ResourceManager {
    within(webs, PATIENCE)
}

fn within(webs: &[&Web], deadline: Duration) -> ResourceManager {
    ResourceManager::new(webs.iter().map(|web| web.address.parse().unwrap()).collect(), deadline)
}

fn node_manager(web: &Web) -> NodeManager {
    NodeManager::new(web.address.parse().unwrap(), PATIENCE)
}

fn trouble<T: std::fmt::Debug>(result: Result<T, Error>) -> Trouble {
    match result.unwrap_err() {
        Error::YarnDaemon { trouble, .. } => trouble,
        other => panic!("{other:?}"),
    }
}

/// Answers as the real ResourceManager of that version did.
fn real_resource_manager(version: &'static str) -> Web {
    Web::start(move |path| {
        let name = match path {
            "/ws/v1/cluster/info" => "rm-info.json",
            "/ws/v1/cluster/nodes" => "rm-nodes.json",
            "/ws/v1/cluster/nodes/localhost:1" => "rm-node.json",
            "/ws/v1/cluster/get-node-labels" => "rm-labels.json",
            path if path.starts_with("/ws/v1/cluster/apps/application_") => "rm-container.json",
            path if path.starts_with("/ws/v1/cluster/nodes/") => {
                return response("404 Not Found", "", &recorded(version, "rm-node-unknown.json"));
            }
            _ => return response("500 Oh", "", path),
        };
        json(&recorded(version, name))
    })
}

/// The container of the recorded answers.
fn container(version: &str) -> ContainerId {
    let answer = recorded(version, "nm-container.json");
    let at = answer.find("container_").unwrap();
    answer[at..].split('"').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_real_resource_managers_say_is_understood() {
    for version in VERSIONS {
        let web = real_resource_manager(version);
        let rm = resource_manager(&[&web]);
        let info = rm.info().await.unwrap();
        assert_eq!(info.resource_manager_version.as_deref(), Some(version));
        assert_eq!(info.ha_state.as_deref(), Some("ACTIVE"));
        let node = rm.node("localhost:1").await.unwrap().unwrap();
        assert_eq!(rm.nodes().await.unwrap(), std::slice::from_ref(&node));
        assert_eq!((node.total.gpus(), node.used.gpus()), (Some(2), Some(2)));
        let amounts: Vec<_> = node.total.amounts().iter().collect();
        assert_eq!((amounts[0].name.as_str(), amounts[0].units.as_str()), ("memory-mb", "Mi"));
        assert_eq!(node.state.as_deref(), Some("RUNNING"));
        assert_eq!(node.health_report, None);
        assert_eq!(node.node_labels, ["gpu"]);
        assert_eq!(node.attributes()[0].name, "GPU_MODEL");
        assert_eq!(node.attributes()[0].value, "NVIDIA-H200");
        let labels = rm.node_labels().await.unwrap();
        assert_eq!((labels[0].name.as_str(), labels[0].exclusive), ("gpu", Some(false)));
        assert_eq!(rm.node("nosuch:1").await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_resource_manager_says_how_many_gpus_a_container_has() {
    for version in VERSIONS {
        let web = real_resource_manager(version);
        let id = container(version);
        let found = resource_manager(&[&web]).container(&id).await.unwrap().unwrap();
        assert_eq!(found.gpus(), Some(2), "{version}");
        assert_eq!(found.state.as_deref(), Some("RUNNING"));
        let path = format!(
            "/ws/v1/cluster/apps/{}/appattempts/{}/containers/{id}",
            id.application(),
            id.attempt()
        );
        assert_eq!(web.requests(), [path]);
        // It has ended, or never was.
        let unknown = recorded(version, "rm-container-unknown.json");
        let web = Web::that(response("404 Not Found", "", &unknown));
        assert_eq!(resource_manager(&[&web]).container(&id).await.unwrap(), None);
        // One allotted none, and one of a version that does not say.
        let without = json(&format!(
            r#"{{"containerId":"{id}","allocatedResources":{{"entry":{{"key":"vcores","value":"1"}}}}}}"#
        ));
        let rm = Web::that(without);
        let found = resource_manager(&[&rm]).container(&id).await.unwrap().unwrap();
        assert_eq!(found.gpus(), Some(0));
        let rm = Web::that(json(&format!(r#"{{"containerId":"{id}"}}"#)));
        let found = resource_manager(&[&rm]).container(&id).await.unwrap().unwrap();
        assert_eq!(found.gpus(), None);
    }
}

#[tokio::test]
async fn an_answer_about_another_container_is_not_believed() {
    let web = real_resource_manager("3.5.0");
    let id: ContainerId = "container_1_0001_01_000007".parse().unwrap();
    let trouble = trouble(resource_manager(&[&web]).container(&id).await);
    assert!(trouble.to_string().contains("and not container_1_0001_01_000007"), "{trouble}");
}

#[tokio::test]
async fn what_real_node_managers_say_is_understood() {
    for version in VERSIONS {
        let web = Web::start(move |path| match path {
            "/ws/v1/node/info" => json(&recorded(version, "nm-info.json")),
            "/ws/v1/node/containers" => json(&recorded(version, "nm-containers.json")),
            "/ws/v1/node/containers/container_1_0001_01_000001" => {
                let unknown = recorded(version, "nm-container-unknown.json");
                response("404 Not Found", "", &unknown)
            }
            path if path.starts_with("/ws/v1/node/containers/") => {
                json(&recorded(version, "nm-container.json"))
            }
            "/ws/v1/node/resources/yarn.io%2Fgpu" => json(&recorded(version, "nm-gpu.json")),
            _ => response("500 Oh", "", path),
        });
        let nm = node_manager(&web);
        let info = nm.info().await.unwrap();
        assert_eq!(info.node_manager_version.as_deref(), Some(version));
        assert_eq!(info.node_healthy, Some(true));
        assert!(info.resource_types.unwrap().contains("yarn.io/gpu"));
        assert!(info.id.unwrap().starts_with("localhost:"));

        let id = container(version);
        let found = nm.container(&id).await.unwrap().unwrap();
        assert_eq!((found.id.as_str(), found.state), (id.as_str(), ContainerState::Running));
        assert_eq!(nm.containers().await.unwrap(), [found]);
        let unknown = "container_1_0001_01_000001".parse().unwrap();
        assert_eq!(nm.container(&unknown).await.unwrap(), None);

        let gpus = nm.gpus().await.unwrap().unwrap();
        assert_eq!(gpus.driver.as_deref(), Some("580.65.06"));
        let minors: Vec<_> = gpus.gpus.iter().map(|gpu| gpu.minor).collect();
        assert_eq!(minors, [Some(0), Some(1)]);
        assert_eq!(gpus.gpus[1].name.as_deref(), Some("NVIDIA H200"));
        assert_eq!((gpus.total.len(), gpus.count_of(id.as_str())), (2, 2));
        // 3.5 says that they are held, and not which.
        let index = gpus.assigned[1].device.index;
        assert_eq!(index, if version == "3.3.6" { Some(1) } else { None });
    }
}

#[tokio::test]
async fn a_node_manager_without_isolation_assigns_nothing_and_one_without_plugin_says_nothing() {
    for version in VERSIONS {
        let web = Web::that(json(&recorded(version, "nm-gpu-without-lce.json")));
        let gpus = node_manager(&web).gpus().await.unwrap().unwrap();
        assert_eq!((gpus.gpus.len(), gpus.total.len(), gpus.assigned.len()), (2, 0, 0));
        let web = Web::that(json(&recorded(version, "nm-other.json")));
        assert_eq!(node_manager(&web).gpus().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_standby_leads_to_the_active_one() {
    let active = real_resource_manager("3.3.6");
    let to = active.address.clone();
    let standby = Web::start(move |path| match path {
        // This alone it answers itself.
        "/ws/v1/cluster/info" => json(r#"{"clusterInfo":{"haState":"STANDBY"}}"#),
        _ => response(
            "307 TEMPORARY_REDIRECT",
            &format!("Location: http://{to}{path}\r\n"),
            "This is standby RM.",
        ),
    });
    let rm = resource_manager(&[&standby]);
    assert_eq!(rm.nodes().await.unwrap().len(), 1);
    let rm = resource_manager(&[&standby, &active]);
    assert_eq!(rm.info().await.unwrap().ha_state.as_deref(), Some("ACTIVE"));
    // It is asked first from now on.
    let before = standby.requests().len();
    rm.info().await.unwrap();
    assert_eq!(standby.requests().len(), before);
}

#[tokio::test]
async fn with_none_active_it_says_so_and_with_one_down_the_other_is_asked() {
    let none = || {
        Web::that(response(
            "307 TEMPORARY_REDIRECT",
            "Refresh: 3;url=/ws/v1/cluster/nodes\r\n",
            "There is currently no active RM.",
        ))
    };
    let (one, other) = (none(), none());
    let rm = resource_manager(&[&one, &other]);
    assert_eq!(trouble(rm.nodes().await), Trouble::Standby);

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let up = real_resource_manager("3.5.0");
    let addresses = vec![closed.to_string().parse().unwrap(), up.address.parse().unwrap()];
    let rm = ResourceManager::new(addresses, PATIENCE);
    assert_eq!(rm.nodes().await.unwrap().len(), 1);
    let rm = ResourceManager::new(vec![closed.to_string().parse().unwrap()], PATIENCE);
    assert!(matches!(trouble(rm.nodes().await), Trouble::Unreachable(_)));
    let error = ResourceManager::new(vec![], PATIENCE).nodes().await.unwrap_err();
    assert!(error.to_string().contains("yarn.resourcemanager_url"), "{error}");
}

#[tokio::test]
async fn one_that_hangs_leaves_time_for_the_other() {
    let hangs = Web::that(Behaviour::Hang);
    let up = real_resource_manager("3.3.6");
    let rm = within(&[&hangs, &up], Duration::from_secs(2));
    assert_eq!(rm.nodes().await.unwrap().len(), 1);
}

#[tokio::test]
async fn no_answer_takes_longer_than_the_deadline() {
    for behaviour in [Behaviour::Hang, Behaviour::Drip] {
        let web = Web::that(behaviour);
        let deadline = Duration::from_millis(300);
        let started = Instant::now();
        let trouble = trouble(within(&[&web], deadline).nodes().await);
        assert!(matches!(trouble, Trouble::Slow(_)), "{trouble:?}");
        // Well below what a client without a deadline would take: for ever.
        assert!(started.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn an_endless_answer_is_not_read() {
    let web = Web::that(Behaviour::Endless);
    let trouble = trouble(resource_manager(&[&web]).nodes().await);
    assert!(matches!(trouble, Trouble::TooLong(_)), "{trouble:?}");
}

#[tokio::test]
async fn what_is_not_spoken_is_named() {
    let location = "Location: https://rm:8090/ws/v1/cluster/nodes\r\n";
    let https = Web::that(response("302 Found", location, ""));
    assert_eq!(trouble(resource_manager(&[&https]).nodes().await), Trouble::Https);
    let negotiate = "WWW-Authenticate: Negotiate\r\nContent-Type: text/html\r\n";
    let kerberos = Web::that(response("401 Unauthorized", negotiate, "<html>"));
    let trouble = trouble(resource_manager(&[&kerberos]).nodes().await);
    assert_eq!(trouble, Trouble::Authentication);
    assert!(trouble.to_string().contains("Kerberos"), "{trouble}");
}

#[tokio::test]
async fn lies_are_no_answers() {
    for (behaviour, words) in [
        (json("<html>"), "can't be read"),
        (json(""), "can't be read"),
        (json("[]"), "can't be read"),
        (json(&"[".repeat(100_000)), "can't be read"),
        (response("200 OK", "Content-Type: text/html\r\n", "<html>log in</html>"), "no JSON"),
        (response("200 OK", "", r#"{"nodeInfo":7}"#), "can't be read"),
        (response("404 Not Found", "", "<html>"), "answers 404"),
        (
            response("500 Oh", "", "java.lang.NullPointerException\n\tat x"),
            "NullPointerException at x",
        ),
        (response("302 Found", "Location: /cluster\r\n", ""), "no web service"),
        (response("302 Found", "Location: /ws/v1/node/info\r\n", ""), "without end"),
        (Behaviour::Raw(b"220 smtp ready\r\n\r\n".to_vec()), "no HTTP"),
        (Behaviour::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{".to_vec()), "reached"),
        (Behaviour::Raw(Vec::new()), "reached"),
        (Behaviour::Raw(vec![b'x'; 1 << 20]), ""),
    ] {
        let web = Web::that(behaviour.clone());
        let trouble = trouble(node_manager(&web).info().await);
        assert!(trouble.to_string().contains(words), "{behaviour:?}: {trouble}");
    }
}

#[tokio::test]
async fn values_that_can_be_none_are_unknown() {
    let web = Web::that(json(
        r#"{"nodes":{"node":[{"id":"a:1","state":7,"nodeLabels":null,"totalResource":
           {"resourceInformations":{"resourceInformation":{"name":"yarn.io/gpu","value":-3}}}},
           {"state":"RUNNING"}]}}"#,
    ));
    let nodes = resource_manager(&[&web]).nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    assert_eq!((nodes[0].state.as_ref(), nodes[0].total.gpus()), (None, None));
    for empty in [r#"{"nodes":null}"#, r#"{"nodes":{}}"#, "{}"] {
        let web = Web::that(json(empty));
        assert_eq!(resource_manager(&[&web]).nodes().await.unwrap(), []);
    }
}
