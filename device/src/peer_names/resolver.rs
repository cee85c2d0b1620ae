//! The DNS client. It queries the configured name servers or, if there are none, the system's.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::RData;
use hickory_resolver::system_conf::read_system_conf;
use thiserror::Error;

use super::directory::{Answer, Target};
use crate::config::DnsEntry;

/// Maximum duration of a lookup, including all servers, retries and names built from the search list.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// Time before a query to a server is retried.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Why the DNS client cannot be set up.
#[derive(Debug, Error)]
pub enum ResolverError {
    #[error("cannot read the name servers in /etc/resolv.conf")]
    ResolvConf(#[source] NetError),
    #[error("cannot set up the DNS client")]
    Client(#[source] NetError),
}

/// Why a name cannot be looked up.
#[derive(Debug, Error)]
pub(super) enum LookupError {
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("no answer within {} s", LOOKUP_TIMEOUT.as_secs())]
    Timeout,
}

/// The DNS client. It reads all its files up front so that it still works inside the sandbox.
#[derive(Clone, Debug)]
pub struct Resolver {
    client: TokioResolver,
    servers: BTreeSet<SocketAddr>,
}

impl Resolver {
    /// Creates a client that queries the configured name servers or, if there are none, the system's.
    ///
    /// # Errors
    /// Fails if the system's configuration cannot be read or the client cannot be created.
    pub fn new(config: &DnsEntry) -> Result<Self, ResolverError> {
        let (config, mut options) = match config.servers.as_slice() {
            [] => system()?,
            servers => {
                let servers = servers.iter().copied().map(name_server).collect();
                (ResolverConfig::from_parts(None, Vec::new(), servers), ResolverOpts::default())
            }
        };
        // Disable caching here, because the directory decides how long an answer stays valid.
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Always;
        // Without EDNS (RFC 6891), a UDP response has room for only about 30 addresses.
        options.edns0 = true;
        options.timeout = options.timeout.min(REQUEST_TIMEOUT);
        let addresses = config.name_servers().iter().flat_map(|server| {
            server.connections.iter().map(|connection| SocketAddr::new(server.ip, connection.port))
        });
        let servers = addresses.collect();
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        Ok(Self { client: builder.build().map_err(ResolverError::Client)?, servers })
    }

    /// Returns the ports of the name servers.
    pub fn ports(&self) -> BTreeSet<u16> {
        self.servers.iter().map(SocketAddr::port).collect()
    }

    /// Looks up the IPv4 or IPv6 addresses of a host.
    ///
    /// # Errors
    /// Fails if no server answers in time or if a server reports an error.
    pub(super) async fn addresses(&self, host: &str, ipv4: bool) -> Result<Answer<IpAddr>, LookupError> {
        let lookup = async {
            if ipv4 { self.client.ipv4_lookup(host).await } else { self.client.ipv6_lookup(host).await }
        };
        answer(lookup, |data| match data {
            RData::A(ip) if ipv4 => Some(ip.0.into()),
            RData::AAAA(ip) if !ipv4 => Some(ip.0.into()),
            _ => None,
        })
        .await
    }

    /// Looks up the targets of a service.
    ///
    /// # Errors
    /// Fails if no server answers in time or if a server reports an error.
    pub(super) async fn targets(&self, service: &str) -> Result<Answer<Target>, LookupError> {
        answer(self.client.srv_lookup(service), |data| match data {
            // RFC 2782: the target "." means that the service is not available.
            RData::SRV(record) if !record.target.is_root() => {
                Some(Target { host: record.target.to_ascii().to_ascii_lowercase().into(), port: record.port })
            }
            _ => None,
        })
        .await
    }
}

async fn answer<T>(
    lookup: impl Future<Output = Result<Lookup, NetError>>,
    record: impl Fn(&RData) -> Option<T>,
) -> Result<Answer<T>, LookupError> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, lookup).await {
        Err(_) => Err(LookupError::Timeout),
        Ok(Ok(lookup)) => {
            // The answers include aliases (CNAME records), whose TTLs also count.
            let ttl = lookup.answers().iter().map(|record| record.ttl).min();
            let records = lookup.answers().iter().filter_map(|found| record(&found.data)).collect();
            Ok(Answer { records, ttl: ttl.map(seconds) })
        }
        // RFC 2308, section 2: the name does not exist or has no records of this type. All other response codes are
        // errors.
        Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none))))
            if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError) =>
        {
            Ok(Answer { records: Vec::new(), ttl: none.negative_ttl.map(seconds) })
        }
        Ok(Err(error)) => Err(error.into()),
    }
}

fn seconds(ttl: u32) -> Duration {
    Duration::from_secs(ttl.into())
}

fn system() -> Result<(ResolverConfig, ResolverOpts), ResolverError> {
    match read_system_conf() {
        Ok(system) => Ok(system),
        // resolv.conf(5): without this file, or without servers in it, the name server is on the local host.
        Err(NetError::Io(error))
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Other) =>
        {
            let local = name_server((Ipv4Addr::LOCALHOST, 53).into());
            Ok((ResolverConfig::from_parts(None, Vec::new(), vec![local]), ResolverOpts::default()))
        }
        Err(error) => Err(ResolverError::ResolvConf(error)),
    }
}

fn name_server(addr: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = addr.port();
        connection
    });
    NameServerConfig::new(addr.ip(), true, connections.into())
}
