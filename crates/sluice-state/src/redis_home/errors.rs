//! Redis' errors as kinds of ours, each with what the server said.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{StoreError, StoreErrorKind};

pub(super) fn store_error(error: &RedisError) -> StoreError {
    let said = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    StoreError::new(kind(error, &said), said)
}

fn kind(error: &RedisError, said: &str) -> StoreErrorKind {
    match error.kind() {
        ErrorKind::AuthenticationFailed => StoreErrorKind::Auth,
        ErrorKind::InvalidClientConfig => StoreErrorKind::Config,
        ErrorKind::ClusterConnectionNotFound => StoreErrorKind::ClusterDown,
        ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::EmptySentinelList => StoreErrorKind::Connect,
        ErrorKind::Server(server) => match server {
            ServerErrorKind::BusyLoading => StoreErrorKind::Loading,
            ServerErrorKind::NoScript => StoreErrorKind::NoScript,
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown => StoreErrorKind::ReadOnly,
            ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask => StoreErrorKind::ClusterDown,
            ServerErrorKind::CrossSlot => StoreErrorKind::CrossSlot,
            ServerErrorKind::NoPerm => StoreErrorKind::NoPerm,
            _ => StoreErrorKind::of_message(said),
        },
        ErrorKind::Extension => StoreErrorKind::of_message(said),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreErrorKind::BadReply,
        _ => of_socket(error, said),
    }
}

fn of_socket(error: &RedisError, said: &str) -> StoreErrorKind {
    let said = said.to_ascii_lowercase();
    if ["certificate", "tls", "handshake"].iter().any(|word| said.contains(word)) {
        StoreErrorKind::Tls
    } else if error.is_timeout() {
        StoreErrorKind::Timeout
    } else if error.is_connection_refusal() {
        StoreErrorKind::Connect
    } else if error.is_connection_dropped() {
        StoreErrorKind::Closed
    } else {
        StoreErrorKind::Connect
    }
}
