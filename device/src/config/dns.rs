//! Settings of the DNS client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{ConfigError, value};

/// Maximum number of name servers. A lookup fails only after all of them have been queried.
const MAX_SERVERS: usize = 8;

/// DNS settings. hcad uses DNS for peers on the `udp` fabric that are specified by name.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DnsEntry {
    /// Addresses and ports of the name servers, such as "127.0.0.1:8600". Default: the name servers, search list and
    /// options in `/etc/resolv.conf`. hcad reads this file and `/etc/hosts` only when it starts.
    pub servers: Vec<SocketAddr>,
}

impl DnsEntry {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if self.servers.len() > MAX_SERVERS {
            return Err(value("dns.servers", format!("more than {MAX_SERVERS} name servers")));
        }
        for (index, server) in self.servers.iter().enumerate() {
            let ip = server.ip();
            let is_unusable =
                ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST);
            if is_unusable || server.port() == 0 {
                return Err(value(
                    &format!("dns.servers[{index}]"),
                    format!("{server} is not a usable address"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_unusable_name_servers() {
        let check = |server: &str| DnsEntry { servers: vec![server.parse().unwrap()] }.check();
        assert!(check("127.0.0.1:8600").is_ok() && check("[::1]:53").is_ok());
        for wrong in ["0.0.0.0:53", "224.0.0.251:53", "127.0.0.1:0"] {
            let error = check(wrong).unwrap_err().to_string();
            assert_eq!(error, format!("dns.servers[0]: {wrong} is not a usable address"));
        }
        let many = DnsEntry { servers: vec![([127, 0, 0, 1], 53).into(); MAX_SERVERS + 1] };
        assert!(many.check().is_err());
    }
}
