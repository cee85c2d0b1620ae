//! Listen address for Prometheus metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{ConfigError, value};

/// Listen address for `GET /metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsConfig {
    /// IP address and port on this host.
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl MetricsConfig {
    /// Parses ADDRESS:PORT, or a path that contains a slash.
    pub(super) fn check(text: &str, key: &str) -> Result<Self, ConfigError> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let problem = "is neither ADDRESS:PORT, such as 127.0.0.1:9474, nor a path with a slash";
        Err(value(key, format!("{text:?} {problem}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_setting_accepts_socket_address_or_path() {
        let check = |text| MetricsConfig::check(text, "metrics").map_err(|error| error.to_string());
        assert_eq!(check("127.0.0.1:9474"), Ok(MetricsConfig::Tcp("127.0.0.1:9474".parse().unwrap())));
        assert_eq!(check("[::1]:1"), Ok(MetricsConfig::Tcp("[::1]:1".parse().unwrap())));
        assert_eq!(check("./m.sock"), Ok(MetricsConfig::Unix("./m.sock".into())));
        for text in ["", "9474", "localhost:9474", "127.0.0.1"] {
            assert!(check(text).unwrap_err().starts_with(&format!("metrics: {text:?} is neither")));
        }
    }
}
