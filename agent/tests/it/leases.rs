//! Leases: real containers' processes, a real agent, stand-ins for the NodeManager and the driver.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::node::{Agent, Node, eventually, is_root};
use crate::node_manager::NodeManager;

fn id(number: u32) -> String {
    format!("container_1410901177871_0001_01_{number:06}")
}

fn devices(answer: &(u16, Value)) -> Vec<&str> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let devices = answer.1["lease"]["devices"].as_array().unwrap();
    devices.iter().map(|device| device.as_str().unwrap()).collect()
}

fn error(answer: &(u16, Value)) -> &str {
    answer.1["error"].as_str().unwrap_or_else(|| panic!("{answer:?}"))
}

fn nothing() -> Value {
    json!({})
}

fn held(agent: &Agent<'_>) -> usize {
    agent.leases().len()
}

#[test]
fn every_container_has_its_own_and_keeps_it() {
    let node = Node::new();
    node.gpus(3);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two] = [2, 3].map(|number| yarn.launch(&agent, &id(number), None));
    let first = one.lease(&nothing());
    assert_eq!(devices(&first), ["GPU-0"]);
    let lease = &first.1["lease"];
    assert_eq!(lease["container"], one.id);
    assert_eq!((&lease["addresses"], &lease["source"]), (&json!(["0"]), &"default".into()));
    assert_eq!(lease["pid"], one.pid().as_raw_nonzero().get());
    assert_eq!(devices(&two.lease(&json!({"hints": {"creel_gpus": 2}}))), ["GPU-1", "GPU-2"]);
    // However often, and whatever it says then.
    for request in
        [nothing(), json!({"hints": {"creel_gpus": 3}}), json!({"hints": {"visible": []}})]
    {
        assert_eq!(one.lease(&request), first);
    }
    let more = one.lease(&json!({"gpus": 2}));
    assert_eq!(more.0, 409);
    assert!(error(&more).contains("2 GPUs asked for, and 1 are due"), "{}", error(&more));
    assert_eq!(agent.get("/v1/status")["leases"], 2);
    let gpus = agent.get("/v1/gpus");
    let holders: Vec<_> =
        gpus["gpus"].as_array().unwrap().iter().map(|gpu| &gpu["lease"]).collect();
    assert_eq!(holders, ["lease-1", "lease-2", "lease-2"]);
    assert_eq!(agent.get("/v1/leases/lease-1")["lease"], *lease);
    let snapshot = fs::read_to_string(agent.socket("snapshot.json")).unwrap();
    assert!(snapshot.contains(&one.id) && snapshot.contains(&two.id), "{snapshot}");
}

#[test]
fn who_says_to_be_another_container_is_what_it_is() {
    let node = Node::new();
    node.gpus(2);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two] = [2, 3].map(|number| yarn.launch(&agent, &id(number), None));
    let forged = json!({"environment": {"CONTAINER_ID": two.id}});
    let first = one.lease_by(&nothing(), &forged);
    assert_eq!(
        (devices(&first), &first.1["lease"]["container"]),
        (vec!["GPU-0"], &one.id.clone().into())
    );
    let second = two.lease_by(&nothing(), &json!({"environment": {"CONTAINER_ID": one.id}}));
    assert_eq!(devices(&second), ["GPU-1"]);
    // One that has left its ancestors and its session behind is in no container.
    let detached =
        json!({"detached": true, "environment": {"CONTAINER_ID": two.id, "LOCAL_DIRS": ""}});
    let answer = one.lease_by(&json!({"in_container": true}), &detached);
    assert_eq!(answer.0, 404, "{}", answer.1);
    assert!(error(&answer).contains("in no YARN container"), "{}", error(&answer));
    assert_eq!(held(&agent), 2);
}

#[test]
fn of_another_user_too() {
    if !is_root("of_another_user_too") {
        return;
    }
    let node = Node::new();
    node.gpus(2);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [ann, bob] = [54_321, 54_322];
    let one = yarn.launch(&agent, &id(2), Some(ann));
    let two = yarn.launch(&agent, &id(3), Some(bob));
    let first = one.lease_by(&nothing(), &json!({"environment": {"CONTAINER_ID": two.id}}));
    assert_eq!((devices(&first), &first.1["lease"]["uid"]), (vec!["GPU-0"], &ann.into()));
    assert_eq!(devices(&two.lease(&nothing())), ["GPU-1"]);
    // Everybody sees their own, and who stands in the way.
    let (status, theirs) = agent.request_as(ann, "GET", "/v1/leases");
    assert_eq!((status, theirs["leases"].as_array().unwrap().len()), (200, 1));
    assert_eq!(agent.request_as(ann, "GET", "/v1/leases/lease-2").0, 403);
    // Nobody but who manages the node ends a container's lease.
    for lease in ["lease-1", "lease-2"] {
        let (status, answer) = agent.request_as(ann, "DELETE", &format!("/v1/leases/{lease}"));
        assert_eq!(status, 403, "{answer}");
    }
    assert_eq!(held(&agent), 2);
    assert_eq!(agent.request("DELETE", "/v1/leases/lease-1").0, 200);
    assert_eq!(agent.request("DELETE", "/v1/leases/lease-1").0, 404);
    assert_eq!(held(&agent), 1);
    assert_eq!(agent.request_as(ann, "DELETE", "/v1/leases/doubt").0, 403);
}

#[test]
fn containers_of_the_node_managers_own_user() {
    if !is_root("containers_of_the_node_managers_own_user") {
        return;
    }
    let node = Node::new();
    node.gpus(2);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, Some(54_323));
    let [one, two] = [2, 3].map(|number| yarn.launch(&agent, &id(number), None));
    let first = one.lease_by(&nothing(), &json!({"environment": {"CONTAINER_ID": two.id}}));
    assert_eq!((devices(&first), &first.1["lease"]["uid"]), (vec!["GPU-0"], &54_323.into()));
    assert_eq!(devices(&two.lease(&nothing())), ["GPU-1"]);
}

#[test]
fn a_full_node_says_who_holds_what_and_serves_in_turn() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two, three] = [2, 3, 4].map(|number| yarn.launch(&agent, &id(number), None));
    assert_eq!(devices(&one.lease(&nothing())), ["GPU-0"]);
    let full = two.lease(&json!({"wait_ms": 50}));
    assert_eq!(full.0, 409);
    assert!(error(&full).contains(&format!("0 (GPU-0) held by {} (lease-1)", one.id)), "{full:?}");
    assert_eq!(devices(&two.lease(&json!({"hints": {"creel_gpus": 0}}))), [""; 0]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| three.lease(&json!({"wait_ms": 60_000})));
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        one.kill();
        assert_eq!(devices(&waiting.join().unwrap()), ["GPU-0"]);
        assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    });
    let log = fs::read_to_string(node.path("state/audit.log")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = events.iter().map(|event| (&event["event"], &event["id"])).collect();
    let expected = [("grant", 1), ("grant", 2), ("end", 1), ("grant", 3)]
        .map(|(event, number)| (Value::from(event), Value::from(format!("lease-{number}"))));
    assert_eq!(events, expected.iter().map(|(event, id)| (event, id)).collect::<Vec<_>>());
}

#[test]
fn a_lease_lasts_until_the_last_process_has_gone() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let one = yarn.launch(&agent, &id(2), None);
    assert_eq!(devices(&one.lease(&nothing())), ["GPU-0"]);
    let left = one.leave();
    // The launch script, then the session's leader; each time another witness is left.
    let (top, leader) = (one.top(), one.pid());
    for process in [top, leader] {
        kill_process(process, Signal::KILL).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(held(&agent), 1);
    }
    let killed = Instant::now();
    kill_process(left, Signal::KILL).unwrap();
    eventually("it has ended", || held(&agent) == 0);
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
}

#[test]
fn leases_outlive_the_agent_and_the_node_manager() {
    let node = Node::new();
    node.gpus(3);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two, three] = [2, 3, 4].map(|number| yarn.launch(&agent, &id(number), None));
    let (first, second) = (one.lease(&nothing()), two.lease(&nothing()));
    agent.signal(Signal::KILL);
    agent.wait();
    two.kill();
    let agent = node.start();
    assert_eq!(agent.leases(), [first.1["lease"].clone()]);
    assert!(agent.log().contains("its holder was gone when the agent started"), "{}", agent.log());
    assert_ne!(first.1, second.1);
    assert_eq!(one.lease(&nothing()), first);
    // A NodeManager that recovers its containers is no longer above them.
    yarn.kill();
    assert_eq!(one.lease(&nothing()), first);
    assert_eq!(devices(&three.lease(&nothing())), ["GPU-1"], "known by its pid file alone");
    let mut yarn = NodeManager::start(&node, None);
    let four = yarn.launch(&agent, &id(5), None);
    assert_eq!(devices(&four.lease(&nothing())), ["GPU-2"]);
    assert_eq!(one.lease(&nothing()), first);
    one.kill();
    eventually("it has ended", || held(&agent) == 2);
}

#[test]
fn what_is_unfit_or_in_use_is_not_given() {
    let node = Node::new();
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = stranger.id();
    node.gpus_but(3, |gpu| match gpu.index {
        0 => gpu.health.add("lost".to_owned()),
        1 => {
            gpu.processes = Some(vec![creel_discovery::inventory::Process {
                pid,
                kind: creel_discovery::inventory::ProcessKind::Compute,
                memory: None,
                gpu_instance: None,
                compute_instance: None,
            }]);
        }
        _ => {}
    });
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two] = [2, 3].map(|number| yarn.launch(&agent, &id(number), None));
    assert_eq!(devices(&one.lease(&nothing())), ["GPU-2"]);
    let full = two.lease(&nothing());
    for part in ["unfit for use: lost", &format!("in use by process {pid} without a lease")] {
        assert!(error(&full).contains(part), "{part}: {full:?}");
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(devices(&two.lease(&json!({"wait_ms": 60_000}))), ["GPU-1"]);
}

#[test]
fn a_damaged_store_gives_nothing_away() {
    let node = Node::new();
    node.gpus(3);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two, three] = [2, 3, 4].map(|number| yarn.launch(&agent, &id(number), None));
    let first = one.lease(&nothing());
    let end = |agent: Agent<'_>| {
        agent.signal(Signal::TERM);
        assert!(agent.wait().success());
    };
    end(agent);
    let store = node.path("state/leases.redb");
    fs::write(&store, b"not a store").unwrap();
    // The audit log knows.
    let agent = node.start();
    assert_eq!(agent.leases(), [first.1["lease"].clone()]);
    let status = agent.get("/v1/status");
    let problem = status["agent"]["lease_error"].as_str().unwrap();
    assert!(problem.contains("kept as"), "{problem}");
    let kept = |prefix: &str| {
        let names = fs::read_dir(node.path("state")).unwrap();
        names
            .filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().starts_with(prefix))
            .count()
    };
    assert_eq!(kept("leases.lost-"), 1);
    // Containers that run may hold what nobody remembers.
    let full = two.lease(&nothing());
    assert!(error(&full).contains("may be held by"), "{full:?}");
    assert_eq!(one.lease(&nothing()), first);
    end(agent);
    let agent = node.start();
    let full = two.lease(&nothing());
    assert!(error(&full).contains("may be held by"), "also for the agent after that: {full:?}");
    two.kill();
    three.kill();
    eventually("nothing is in doubt", || agent.get("/v1/status")["agent"]["lease_error"].is_null());
    let four = yarn.launch(&agent, &id(5), None);
    assert_eq!(devices(&four.lease(&json!({"wait_ms": 60_000}))), ["GPU-1"]);
}

#[test]
fn a_state_directory_that_was_taken_away_gives_nothing_away() {
    let node = Node::new();
    node.gpus(2);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two] = [901, 902].map(|number| yarn.launch(&agent, &id(number), None));
    let first = one.lease(&nothing());
    let problem = |agent: &Agent<'_>| agent.get("/v1/status")["agent"]["lease_error"].to_string();
    let end = |agent: Agent<'_>| {
        agent.signal(Signal::TERM);
        assert!(agent.wait().success());
    };
    end(agent);
    // The audit log knows all.
    fs::remove_file(node.path("state/leases.redb")).unwrap();
    let agent = node.start();
    assert_eq!(agent.leases(), [first.1["lease"].clone()]);
    assert_eq!(problem(&agent), "null");
    end(agent);

    fs::remove_dir_all(node.path("state")).unwrap();
    let agent = node.start();
    let told = problem(&agent);
    assert!(told.contains("leases.redb is gone") && told.contains(&id(901)), "{told}");
    assert!(!told.contains(&id(902)), "it held none: {told}");
    let full = two.lease(&nothing());
    assert!(error(&full).contains("may be held by"), "{full:?}");
    end(agent);
    let agent = node.start();
    let full = two.lease(&nothing());
    assert!(error(&full).contains("may be held by"), "also for the agent after that: {full:?}");
    one.kill();
    eventually("it is in doubt no longer", || !problem(&agent).contains(&id(901)));
    // What other agents of this machine lent to processes may still be.
    agent.creel(&["lease", "release", "doubt"]).output().unwrap();
    assert_eq!(devices(&two.lease(&json!({"wait_ms": 60_000}))), ["GPU-0"]);
}

#[test]
fn what_is_in_doubt_is_released_by_hand() {
    let node = Node::new();
    node.gpus(1);
    fs::create_dir_all(node.path("state")).unwrap();
    fs::write(node.path("state/leases.redb"), b"").unwrap();
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let one = yarn.launch(&agent, &id(2), None);
    agent.signal(Signal::KILL);
    agent.wait();
    fs::write(node.path("state/leases.redb"), b"").unwrap();
    let agent = node.start();
    assert_eq!(one.lease(&nothing()).0, 409);
    let released = agent.creel(&["lease", "release", "doubt"]).output().unwrap();
    assert!(released.status.success(), "{released:?}");
    assert_eq!(devices(&one.lease(&nothing())), ["GPU-0"]);
    let again = agent.creel(&["lease", "release", "doubt"]).output().unwrap();
    assert_eq!(again.status.code(), Some(5));
}

#[test]
fn a_lease_that_would_be_forgotten_is_not_given() {
    let node = Node::new();
    node.gpus(1);
    fs::write(node.path("state"), "a file in the way").unwrap();
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let one = yarn.launch(&agent, &id(2), None);
    let answer = one.lease(&nothing());
    assert_eq!(answer.0, 503);
    assert!(error(&answer).contains("leases.redb"), "{answer:?}");
    let status = agent.get("/v1/status");
    assert!(status["agent"]["lease_error"].is_string(), "{status}");
    assert_eq!(held(&agent), 0);
}

#[test]
fn a_hundred_ask_at_once_and_none_shares() {
    let node = Node::new();
    node.gpus(8);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let one = yarn.launch(&agent, &id(2), None);
    // A hundred processes, and one container from several of its processes.
    let (answers, same) = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..100)
            .map(|_| {
                let script = "echo $CREEL_LEASE $CUDA_VISIBLE_DEVICES; exec sleep 600";
                let mut command = agent.creel(&["run", "--wait", "1s", "sh", "-c", script]);
                command.stdout(Stdio::piped()).stderr(Stdio::null());
                command.spawn().unwrap()
            })
            .collect();
        let asked: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| agent.post("/v1/leases", &json!({"in_container": true}))))
            .collect();
        for answer in asked {
            assert_eq!(answer.join().unwrap().0, 404);
        }
        let same = one.lease(&json!({"wait_ms": 1000}));
        (runs, same)
    });
    let mut lines = Vec::new();
    let mut children = Vec::new();
    for mut child in answers {
        let line = crate::node::line(child.stdout.as_mut().unwrap());
        if !line.is_empty() {
            lines.push(line);
        }
        children.push(child);
    }
    let mut held: Vec<_> =
        lines.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect();
    let container = if same.0 == 200 { devices(&same) } else { Vec::new() };
    held.extend(container.iter().map(|device| (*device).to_owned()));
    held.sort();
    assert_eq!(held, (0..8).map(|index| format!("GPU-{index}")).collect::<Vec<_>>());
    for mut child in children {
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
fn a_program_runs_with_gpus_of_its_own() {
    let node = Node::new();
    node.gpus(3);
    let agent = node.start();
    let script = "echo $CUDA_VISIBLE_DEVICES; exit 7";
    let ran = agent.creel(&["run", "--gpus", "2", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).trim()),
        (Some(7), "GPU-0,GPU-1")
    );
    eventually("its lease has ended", || held(&agent) == 0);

    let mut run = agent.creel(&["run", "--gpus", "3", "sleep", "600"]).spawn().unwrap();
    eventually("it runs", || held(&agent) == 1);
    assert_eq!(agent.leases()[0]["pid"], run.id());
    let full = agent.creel(&["run", "--wait", "0s", "true"]).output().unwrap();
    assert_eq!(full.status.code(), Some(6));
    let text = String::from_utf8_lossy(&full.stderr);
    assert!(text.contains("held by process"), "{text}");
    let show = agent.creel(&["--json", "lease", "show", "lease-2"]).output().unwrap();
    let show: Value = serde_json::from_slice(&show.stdout).unwrap();
    assert_eq!(show["lease"]["devices"], json!(["GPU-0", "GPU-1", "GPU-2"]));
    let killed = Instant::now();
    run.kill().unwrap();
    assert_eq!(run.wait().unwrap().signal(), Some(9));
    eventually("its lease has ended", || held(&agent) == 0);
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());

    let missing = agent.creel(&["run", "no-such-program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    let no_program = agent.creel(&["run", "/"]).output().unwrap();
    assert_eq!(no_program.status.code(), Some(126));
    let unknown = agent.creel(&["lease", "show", "lease-99"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(5));
}

#[test]
fn a_program_waits_for_an_agent_that_has_too_much_to_do() {
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    let connect = |_| std::os::unix::net::UnixStream::connect(agent.socket("agent.sock")).unwrap();
    let open: Vec<_> = (0..128).map(connect).collect();
    let at_once = agent.creel(&["run", "--wait", "0s", "true"]).output().unwrap();
    let text = String::from_utf8_lossy(&at_once.stderr);
    assert_eq!(at_once.status.code(), Some(6), "{text}");
    assert!(text.contains("too many connections"), "{text}");
    let mut waits = agent.creel(&["run", "--wait", "30s", "true"]).spawn().unwrap();
    let turned_away = || agent.log().matches("a control connection is turned away").count();
    eventually("it was turned away, and again", || turned_away() >= 3);
    drop(open);
    assert!(waits.wait().unwrap().success());
}

#[test]
fn who_runs_a_program_may_end_its_lease() {
    if !is_root("who_runs_a_program_may_end_its_lease") {
        return;
    }
    let node = Node::new();
    node.gpus(1);
    let agent = node.start();
    let uid = 54_321;
    let text = "POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let mut peer = agent.peer(uid, "agent.sock", "request");
    std::io::Write::write_all(peer.child.stdin.as_mut().unwrap(), text.as_bytes()).unwrap();
    drop(peer.child.stdin.take());
    eventually("it has a lease", || held(&agent) == 1);
    assert_eq!(agent.leases()[0]["uid"], uid);
    assert_eq!(agent.request_as(54_322, "DELETE", "/v1/leases/lease-1").0, 403);
    assert_eq!(agent.request_as(uid, "DELETE", "/v1/leases/lease-1").0, 200);
    assert_eq!(held(&agent), 0);
}

#[test]
fn bodies_are_bounded() {
    let node = Node::new();
    let agent = node.start();
    assert_eq!(agent.post("/v1/leases", &json!({"gpus": -1})).0, 400);
    // A client that sends more than is read may find the connection closed.
    let mut long = std::os::unix::net::UnixStream::connect(agent.socket("agent.sock")).unwrap();
    let head = "POST /v1/leases HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n";
    long.write_all(format!("{head}{}", " ".repeat(70_000)).as_bytes()).unwrap();
    let answer = crate::node::rest(&mut long);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    let full = agent.post("/v1/leases", &json!({"gpus": 1}));
    assert_eq!(full.0, 409);
    assert!(error(&full).contains("the node has none"), "{full:?}");
    assert_eq!(agent.request("PUT", "/v1/leases").0, 405);
    assert_eq!(agent.request("POST", "/v1/leases/lease-1").0, 405);
}

/// The agent is killed while containers come and go: no device is ever given twice.
#[test]
fn an_agent_that_is_killed_again_and_again_gives_no_device_twice() {
    let node = Node::new();
    node.gpus(2);
    let mut yarn = NodeManager::start(&node, None);
    let mut kept = Vec::new();
    for round in 0..8 {
        let agent = node.start();
        let container = yarn.launch(&agent, &id(10 + round), None);
        let answer = container.lease(&json!({"wait_ms": 60_000}));
        kept.push((container, devices(&answer)[0].to_owned()));
        if kept.len() == 2 {
            let (gone, _) = kept.remove(round as usize % 2);
            gone.kill();
        }
        agent.signal(Signal::KILL);
        agent.wait();
    }
    let log = fs::read_to_string(node.path("state/audit.log")).unwrap();
    let mut held = std::collections::BTreeMap::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let id = line["id"].as_str().unwrap().to_owned();
        let device = line["lease"]["devices"][0]["uuid"].as_str().unwrap().to_owned();
        if line["event"] == "grant" {
            assert_eq!(held.insert(device, id), None, "{log}");
        } else {
            assert_eq!(held.remove(&device), Some(id), "{log}");
        }
    }
    assert_eq!(log.lines().filter(|line| line.contains("\"grant\"")).count(), 8);
}

#[test]
fn a_node_manager_made_up_by_the_containers_own_user_has_no_directory_of_yarns() {
    if !is_root("a_node_manager_made_up_by_the_containers_own_user_has_no_directory_of_yarns") {
        return;
    }
    let node = Node::new();
    node.gpus(2);
    let conf = node.path("conf");
    fs::create_dir(&conf).unwrap();
    let local = |directories: &str| {
        let property = format!(
            "<configuration><property><name>yarn.nodemanager.local-dirs</name>\
             <value>{directories}</value></property></configuration>"
        );
        fs::write(conf.join("yarn-site.xml"), property).unwrap();
    };
    for (directories, status) in [
        ("/elsewhere".to_owned(), 403),
        (format!("/elsewhere, file://{}", node.path("yarn/local").display()), 200),
    ] {
        local(&directories);
        let setting = format!("yarn.conf_dir={}", conf.display());
        let agent = node.start_with(&["--set", &setting]);
        let mut yarn = NodeManager::start(&node, Some(54_323));
        let container = yarn.launch(&agent, &id(status), None);
        let answer = container.lease(&nothing());
        assert_eq!(u32::from(answer.0), status, "{}", answer.1);
    }
}

#[test]
fn a_disk_that_was_full_is_used_again() {
    if !is_root("a_disk_that_was_full_is_used_again") {
        return;
    }
    let node = Node::new();
    node.gpus(2);
    let state = node.path("state");
    let Some(_small) = SmallDisk::at(&state) else { return };
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let [one, two] = [2, 3].map(|number| yarn.launch(&agent, &id(number), None));
    assert_eq!(devices(&one.lease(&nothing())), ["GPU-0"]);
    // As much as there is room for, however little is left.
    let mut filler = fs::File::create(state.join("filler")).unwrap();
    for size in [1 << 16, 1 << 8, 1] {
        while filler.write_all(&vec![0; size]).is_ok() {}
    }
    let full = two.lease(&nothing());
    assert_eq!(full.0, 503);
    assert!(error(&full).contains("would be forgotten"), "{full:?}");
    drop(filler);
    fs::remove_file(state.join("filler")).unwrap();
    let again = two.lease(&nothing());
    assert_eq!(devices(&again), ["GPU-1"]);
    assert!(agent.get("/v1/status")["agent"]["lease_error"].is_null());
    agent.signal(Signal::KILL);
    agent.wait();
    let agent = node.start();
    assert_eq!(held(&agent), 2);
}

/// A file system of few bytes, until it is dropped.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    /// Unless nothing can be mounted here; says so.
    fn at(path: &std::path::Path) -> Option<Self> {
        fs::create_dir(path).unwrap();
        let mut mount = std::process::Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", "size=8m", "none"]).arg(path).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(path.to_owned()));
        }
        eprintln!("SKIPPED: nothing can be mounted here");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // An agent may still have files there: it goes when they are closed.
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A control group of the `devices` controller (v1) by a container's name, as YARN makes it; goes
/// with this.
struct Group(std::path::PathBuf);

impl Group {
    /// Unless this machine has none, or this user may not make one; says so.
    fn of(container: &str) -> Option<Self> {
        let hierarchy = format!("/sys/fs/cgroup/devices/creel-test-{}", std::process::id());
        let path = std::path::Path::new(&hierarchy).join(container);
        match fs::create_dir_all(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                eprintln!("SKIPPED: no control group can be made: {error}");
                None
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes are killed, and have yet to go.
        eventually("the group goes", || fs::remove_dir(&self.0).is_ok());
        let _ = fs::remove_dir(self.0.parent().unwrap());
    }
}

#[test]
fn where_yarn_assigns_the_lease_follows() {
    if !is_root("where_yarn_assigns_the_lease_follows") {
        return;
    }
    let node = Node::new();
    node.gpus(4);
    node.devices(4);
    let agent = node.start();
    let mut yarn = NodeManager::start(&node, None);
    let leases: Vec<_> = [(2, &[0, 2][..]), (3, &[0, 1, 3]), (4, &[0, 1, 2, 3])]
        .into_iter()
        .map_while(|(number, denied)| {
            let container = yarn.launch(&agent, &id(number), Some(54_321));
            let group = Group::of(&container.id)?;
            for minor in denied {
                fs::write(group.0.join("devices.deny"), format!("c 195:{minor} rwm")).unwrap();
            }
            let pid = container.pid().as_raw_nonzero().to_string();
            fs::write(group.0.join("cgroup.procs"), pid).unwrap();
            // Whatever it says.
            let lies = json!({"hints": {"creel_gpus": 4, "visible": ["GPU-0", "GPU-2"]}});
            let lease = container.lease(&lies);
            container.kill();
            Some((lease, group, container))
        })
        .collect();
    let expected = [
        (vec!["GPU-1", "GPU-3"], json!(["0", "1"])),
        (vec!["GPU-2"], json!(["0"])),
        (vec![], json!([])),
    ];
    for ((lease, ..), (held, addresses)) in leases.iter().zip(expected) {
        assert_eq!(devices(lease), held);
        assert_eq!(
            (&lease.1["lease"]["addresses"], &lease.1["lease"]["source"]),
            (&addresses, &"cgroup".into())
        );
    }
}
