//! How every program is told where Redis is: the same flags and environment variables for all of them.

use std::path::PathBuf;

use crate::redis_home::RedisConfig;

/// Flags, to be flattened into a program's own.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Shared state")]
pub struct RedisArgs {
    /// Shared state: redis://, rediss://, redis+sentinel://, redis+cluster://. Without it there is none.
    #[arg(long, alias = "redis", env = "SLUICE_REDIS_URL", value_name = "URL", hide_env_values = true)]
    pub redis_url: Option<String>,
    /// User of the Redis servers, in place of the URL's.
    #[arg(long, env = "SLUICE_REDIS_USERNAME", value_name = "NAME")]
    pub redis_username: Option<String>,
    /// Its password, in place of the URL's. The variable is safer than the flag, which others can see.
    #[arg(long, env = "SLUICE_REDIS_PASSWORD", value_name = "PASSWORD", hide_env_values = true)]
    pub redis_password: Option<String>,
    /// PEM file of the authorities for rediss, in place of the system's; read at the start.
    #[arg(long, env = "SLUICE_REDIS_CA", value_name = "FILE")]
    pub redis_ca: Option<PathBuf>,
    /// The authorities themselves, PEM, for where no file can be mounted.
    #[arg(
        long,
        env = "SLUICE_REDIS_CA_PEM",
        value_name = "PEM",
        hide_env_values = true,
        conflicts_with = "redis_ca"
    )]
    pub redis_ca_pem: Option<String>,
}

/// The file with the authorities can't be read.
#[derive(Debug, thiserror::Error)]
#[error("SLUICE_REDIS_CA {path:?} cannot be read: {source}; name a PEM file")]
pub struct UnreadableCa {
    path: PathBuf,
    source: std::io::Error,
}

impl RedisArgs {
    /// How Redis is reached; `None`: there is none. An empty variable is none: charts and scripts set such.
    ///
    /// # Errors
    /// [`UnreadableCa`].
    pub fn config(&self) -> Result<Option<RedisConfig>, UnreadableCa> {
        let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let Some(url) = set(&self.redis_url) else { return Ok(None) };
        let ca_pem = match &self.redis_ca {
            Some(path) => {
                Some(std::fs::read(path).map_err(|source| UnreadableCa { path: path.clone(), source })?)
            }
            None => set(&self.redis_ca_pem).map(String::into_bytes),
        };
        Ok(Some(RedisConfig {
            url,
            username: set(&self.redis_username),
            password: set(&self.redis_password),
            ca_pem,
            ..RedisConfig::default()
        }))
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

    fn config(args: &[&str]) -> Result<Option<RedisConfig>, UnreadableCa> {
        Program::try_parse_from([&["program"], args].concat()).unwrap().redis.config()
    }

    #[test]
    fn flags_say_how_redis_is_reached() {
        assert!(config(&[]).unwrap().is_none());
        assert!(config(&["--redis-url", ""]).unwrap().is_none());
        let args = [
            "--redis",
            "rediss://h",
            "--redis-username",
            "u",
            "--redis-password",
            "p",
            "--redis-ca-pem",
            "PEM",
        ];
        let found = config(&args).unwrap().unwrap();
        assert_eq!((found.url.as_str(), found.username.as_deref()), ("rediss://h", Some("u")));
        assert_eq!((found.password.as_deref(), found.ca_pem.as_deref()), (Some("p"), Some(&b"PEM"[..])));
        let missing = config(&["--redis-url", "rediss://h", "--redis-ca", "/nowhere/ca.pem"]).unwrap_err();
        assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
    }
}
