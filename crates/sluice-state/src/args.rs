//! How every program is told where Redis is: the same flags and environment variables for all of them.

use crate::redis_home::RedisConfig;

/// Flags, to be flattened into a program's own.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Shared state")]
#[allow(clippy::struct_field_names, reason = "they name the flags")]
pub struct RedisArgs {
    /// Shared state: redis://, rediss://, redis+sentinel://, redis+cluster://. Without it each agent is alone.
    #[arg(long, alias = "redis", env = "SLUICE_REDIS_URL", value_name = "URL", hide_env_values = true)]
    pub redis_url: Option<String>,
    /// User of the Redis servers, in place of the URL's.
    #[arg(long, env = "SLUICE_REDIS_USERNAME", value_name = "NAME")]
    pub redis_username: Option<String>,
    /// Its password, in place of the URL's. The variable is safer than the flag, which others can see.
    #[arg(long, env = "SLUICE_REDIS_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub redis_password: Option<String>,
    /// The authorities for rediss, in PEM, in place of the system's.
    #[arg(long, env = "SLUICE_REDIS_CA_PEM", value_name = "PEM", hide_env_values = true)]
    pub redis_ca_pem: Option<String>,
}

impl RedisArgs {
    /// How Redis is reached; `None`: there is none. An empty variable is none: charts and scripts set such.
    #[must_use]
    pub fn config(&self) -> Option<RedisConfig> {
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Some(RedisConfig {
            url: set(&self.redis_url)?,
            username: set(&self.redis_username),
            password: set(&self.redis_password),
            ca_pem: set(&self.redis_ca_pem).map(String::into_bytes),
            ..RedisConfig::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        redis: RedisArgs,
    }

    fn config(args: &[&str]) -> Option<RedisConfig> {
        Program::try_parse_from([&["program"], args].concat()).unwrap().redis.config()
    }

    #[test]
    fn flags_say_how_redis_is_reached() {
        assert!(config(&[]).is_none());
        assert!(config(&["--redis-url", ""]).is_none());
        let args = [
            "--redis",
            "rediss://h",
            "--redis-username",
            "u",
            "--redis-password",
            "",
            "--redis-ca-pem",
            "PEM",
        ];
        let found = config(&args).unwrap();
        assert_eq!((found.url.as_str(), found.username.as_deref()), ("rediss://h", Some("u")));
        assert_eq!((found.password.as_deref(), found.ca_pem.as_deref()), (None, Some(&b"PEM"[..])));
    }
}
