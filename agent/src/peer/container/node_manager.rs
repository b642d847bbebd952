//! YARN's NodeManager among the processes.

use super::{Unclear, is_container_id};
use crate::peer::proc::Proc;

/// The class that a `NodeManager`'s `java` is started with.
pub(super) const CLASS: &str = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";

/// Options of `java` that take the next argument.
const WITH_VALUE: [&str; 5] = ["-cp", "-classpath", "--class-path", "-p", "--module-path"];

/// Whether a process is a NodeManager: the program `java`, with that main class, and one user.
///
/// Arguments alone would not do: `exec -a java su … CLASS` shows them as root's. A set-user-id
/// program runs another file, and has several users.
pub(super) fn is_one(proc: &Proc, pid: i32) -> bool {
    let Ok(arguments) = proc.arguments(pid) else { return false };
    let is_java = match proc.program(pid) {
        Ok(program) => program == "java",
        // Another user's, and the agent is not root.
        Err(_) => arguments.first().is_some_and(|name| name.rsplit('/').next() == Some("java")),
    };
    let is_one_user =
        || proc.users(pid).is_ok_and(|users| users.iter().all(|uid| *uid == users[0]));
    is_java && main_class(&arguments) == Some(CLASS) && is_one_user()
}

/// The main class of a `java`'s arguments.
fn main_class(arguments: &[String]) -> Option<&str> {
    let mut rest = arguments.iter().skip(1).map(String::as_str);
    loop {
        match rest.next()? {
            option if WITH_VALUE.contains(&option) => {
                rest.next();
            }
            option if option.starts_with('-') || option.starts_with('@') => {}
            class => return Some(class),
        }
    }
}

/// The container of the process just below a NodeManager: `CONTAINER_ID` of its environment, or,
/// as `container-executor` is started without one, the name in its arguments.
pub(super) fn container_below(proc: &Proc, pid: i32) -> Result<String, Unclear> {
    let variable = proc.variable(pid, "CONTAINER_ID");
    if let Ok(Some(id)) = &variable
        && is_container_id(id)
    {
        return Ok(id.clone());
    }
    let arguments = proc.arguments(pid).unwrap_or_default();
    let named = arguments.iter().flat_map(|argument| argument.split('/'));
    named.clone().find(|name| is_container_id(name)).map(str::to_owned).ok_or_else(|| {
        let why = match variable {
            Err(error) => format!("its environment can't be read: {error}"),
            Ok(_) => "neither its CONTAINER_ID nor its arguments name one".to_owned(),
        };
        Unclear(format!(
            "process {pid}, just below the NodeManager, is of no container that can be told: {why}"
        ))
    })
}
