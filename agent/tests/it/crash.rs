//! Executors that end unasked.

use std::io::Write;

use rustix::process::Signal;

use crate::node::{Node, eventually, rest};

#[test]
fn clients_of_a_killed_executor_are_told_and_the_next_one_is_served() {
    let node = Node::new();
    let agent = node.start();
    let mut clients = [agent.attach(), agent.attach()];
    let killed = agent.executor_pid();
    rustix::process::kill_process(killed, Signal::KILL).unwrap();
    for client in &mut clients {
        let last = rest(client);
        assert!(last.contains("killed by signal 9 (SIGKILL)"), "{last:?}");
    }
    let _next = agent.attach();
    let executor = &agent.executors()[0];
    assert_ne!(agent.executor_pid(), killed);
    assert_eq!((&executor["state"], &executor["restarts"]), (&"running".into(), &1.into()));
    assert!(executor["last_error"].as_str().unwrap().contains("SIGKILL"), "{executor}");
    assert_eq!(agent.attachments().len(), 1);
    assert_eq!(std::fs::read_dir(node.path("spill")).unwrap().count(), 1);
}

#[test]
fn last_words_are_part_of_the_reason() {
    let node = Node::new();
    let agent = node.start();
    let mut client = agent.attach();
    client.write_all(b"fail\n").unwrap();
    let last = rest(&mut client);
    assert!(last.contains("exit code 3; its last words: the last straw"), "{last:?}");
    assert!(agent.log().contains("the last straw"));
}

#[test]
fn crashes_in_a_row_make_no_storm() {
    let node = Node::with_executor("crashes");
    let agent = node.start();
    for _ in 0..3 {
        let last = rest(&mut agent.connect());
        assert!(last.contains("SIGSEGV"), "{last:?}");
    }
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::Unavailable as u32);
    assert!(message.contains("SIGSEGV") && message.contains("try again in"), "{message}");
    let executor = &agent.executors()[0];
    assert_eq!((&executor["state"], &executor["restarts"]), (&"backing_off".into(), &2.into()));
    eventually("it may start again", || agent.executors()[0]["state"] == "failed");
    assert!(rest(&mut agent.connect()).contains("SIGSEGV"));
    assert_eq!(agent.executors()[0]["restarts"], 3);
}

#[test]
fn an_executor_that_cannot_start_is_not_started_over_and_over() {
    let node = Node::with_executor("broken");
    let agent = node.start();
    let message = agent.call().1;
    assert!(message.contains("exit code 3; its last words: no luck today"), "{message}");
    for _ in 0..2 {
        assert!(agent.call().1.contains("could not start"));
    }
    let message = agent.call().1;
    assert!(message.contains("try again in"), "{message}");
    assert_eq!(agent.log().matches("WARN the executor could not start").count(), 3);
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let node = Node::new();
    std::fs::remove_file(node.path("executor")).unwrap();
    let agent = node.start();
    let (code, message) = agent.call();
    assert_eq!(code, tonic::Code::Unavailable as u32);
    assert!(message.contains(node.path("executor").to_str().unwrap()), "{message}");
}
