//! The least rights that an agent's Redis user needs, as one ACL rule.
//!
//! EVALSHA without EVAL: a user with these rights runs scripts by their hash, but loads them too (a restart or a
//! failover loses them, and the agent must be able to load them again).
//!
//! Of a cluster, or through Sentinels, the client library offers its name with CLIENT SETINFO. It goes on when that is
//! denied, and servers older than 7.2 refuse a rule that names the command, so it is no part of the rule: newer
//! servers' ACL LOG shows the denial. `+client|setinfo` may be added there.

use crate::script::CHANNEL;

/// How the server is run; a cluster's client has to learn its nodes, and finding a primary asks for its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclMode {
    Standalone,
    Sentinel,
    Cluster,
}

impl AclMode {
    pub const ALL: [Self; 3] = [Self::Standalone, Self::Sentinel, Self::Cluster];
}

/// The commands of the scripts and of the connection.
const COMMANDS: [&str; 14] = [
    "+evalsha",
    "+script|load",
    "+script|exists",
    "+ping",
    "+hello",
    "+info",
    "+time",
    "+get",
    "+set",
    "+hmget",
    "+hset",
    "+pexpire",
    "+publish",
    "+subscribe",
];

/// What follows `ACL SETUSER <name> on ><password>`.
///
/// ```
/// use sluice_state::acl::{AclMode, acl_rule};
/// assert!(acl_rule(AclMode::Standalone).starts_with("resetkeys ~sluice:1:* resetchannels &sluice:1:transitions -@all "));
/// ```
#[must_use]
pub fn acl_rule(mode: AclMode) -> String {
    let more: &[&str] = match mode {
        AclMode::Standalone => &[],
        AclMode::Sentinel => &["+role"],
        AclMode::Cluster => &["+cluster|slots", "+cluster|shards", "+cluster|myid", "+readonly"],
    };
    let commands: Vec<&str> = COMMANDS.iter().chain(more).copied().collect();
    format!("resetkeys ~sluice:1:* resetchannels &{CHANNEL} -@all {}", commands.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_and_the_guide_grant_the_same() {
        let of_chart = include_str!("../../../charts/sluice/files/redis-acl.txt");
        assert_eq!(of_chart.trim_end(), acl_rule(AclMode::Standalone));
        let guide = include_str!("../../../docs/install.md").replace("\\|", "|");
        let standalone = acl_rule(AclMode::Standalone);
        assert!(guide.contains(&format!("`{standalone}`")), "docs/install.md: {standalone}");
        for mode in [AclMode::Sentinel, AclMode::Cluster] {
            let rule = acl_rule(mode);
            let more = rule.strip_prefix(&standalone).map(str::trim_start).unwrap_or_default();
            assert!(guide.contains(&format!("the same and `{more}`")), "docs/install.md: {mode:?}: {more}");
        }
    }
}
