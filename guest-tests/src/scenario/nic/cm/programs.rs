//! Programs that set up connections with `rdma_cm`, and the output that indicates success.

use anyhow::{Result, ensure};

use super::bench::Network;
use crate::tools::{Ends, Ready};

/// A program with a client and a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    server: &'static str,
    client: &'static str,
    pub(super) ready: Ready,
    /// Text that both ends must print, in addition to exiting with status 0.
    prints: &'static str,
    pub(super) over_ipv6: OverIpv6,
}

/// How a program behaves with IPv6 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverIpv6 {
    Works,
    /// The program resolves only IPv4 addresses.
    Unknown,
    /// The kernel returns the given error to the server, regardless of the device.
    Refused(&'static str),
}

/// Placeholder for the server's address in command lines.
const SERVER: &str = "{b}";
/// Placeholder for the client's address.
const CLIENT: &str = "{a}";
/// Placeholder for a group's address.
const GROUP: &str = "{group}";

// In the following command lines, `-V` and `-T v` make a program check the data that it receives.
const RPING: Program = connected("rping -s -a {b} -C 20 -V", "rping -c -a {b} -C 20 -V");
const UCMATOSE: Program = printing(
    "ucmatose -b {b} -C 20 -S 3000",
    "ucmatose -s {b} -b {a} -C 20 -S 3000",
    "data transfers complete",
);
const UDADDY: Program =
    printing("udaddy -b {b} -C 20 -S 1024", "udaddy -s {b} -b {a} -C 20 -S 1024", "data transfers complete");
const RSTREAM: Program =
    connected("rstream -b {b} -S 65536 -C 10 -T v", "rstream -s {b} -S 65536 -C 10 -T v");
const MCKEY: Program = Program {
    server: "mckey -m {group} -b {b} -C 10",
    client: "mckey -m {group} -b {a} -s -C 10",
    ready: Ready::Line("receiving data transfers"),
    prints: "data transfers complete",
    // ENOTSUPP: for RoCEv2, `cma_iboe_join_multicast` supports only IGMP, and thus only IPv4 groups.
    over_ipv6: OverIpv6::Refused("failure joining: Unknown error 524"),
};

const CMTIME: Program = Program {
    over_ipv6: OverIpv6::Unknown,
    ..connected("cmtime -b {b} -c 20", "cmtime -s {b} -b {a} -c 20")
};

pub(super) const FEW: &[Program] = &[RPING, UCMATOSE, UDADDY, RSTREAM, MCKEY];

pub(super) const ALL: &[Program] = &[
    RPING,
    connected("rping -s -a {b} -C 10 -S 65000 -V", "rping -c -a {b} -C 10 -S 65000 -V"),
    UCMATOSE,
    printing("ucmatose -b {b} -c 8 -C 10", "ucmatose -s {b} -b {a} -c 8 -C 10", "data transfers complete"),
    UDADDY,
    printing("udaddy -b {b} -c 8 -C 4", "udaddy -s {b} -b {a} -c 8 -C 4", "data transfers complete"),
    RSTREAM,
    connected("rstream -b {b} -S 1000 -C 100 -T n", "rstream -s {b} -S 1000 -C 100 -T n"),
    connected("riostream -b {b} -S 4096 -C 50 -T v", "riostream -s {b} -S 4096 -C 50 -T v"),
    CMTIME,
    MCKEY,
];

const fn connected(server: &'static str, client: &'static str) -> Program {
    printing(server, client, "")
}

const fn printing(server: &'static str, client: &'static str, prints: &'static str) -> Program {
    Program { server, client, ready: Ready::Cm, prints, over_ipv6: OverIpv6::Works }
}

impl Program {
    /// Returns whether the program sends to a multicast group.
    pub(super) fn is_of_group(&self) -> bool {
        self.client.contains(GROUP)
    }

    /// Returns the client's command line without addresses, for use in case names.
    pub(super) fn name(&self, network: Network) -> String {
        let words = self.client.split_whitespace().collect::<Vec<_>>();
        let group = network.group();
        let is_address = |word: &str| [SERVER, CLIENT].contains(&word);
        let mut name = Vec::new();
        for (nth, &word) in words.iter().enumerate() {
            let names_address = words.get(nth + 1).is_some_and(|next| is_address(next));
            if !is_address(word) && !names_address {
                name.push(if word == GROUP { group } else { word });
            }
        }
        name.join(" ")
    }

    pub(super) fn lines(&self, network: Network, client: &str, server: &str) -> [String; 2] {
        [self.server, self.client]
            .map(|line| line.replace(SERVER, server).replace(CLIENT, client).replace(GROUP, network.group()))
    }

    /// Checks that both ends printed the expected text.
    pub(super) fn judge(&self, ends: &Ends) -> Result<()> {
        for end in [&ends.client, &ends.server] {
            ensure!(
                end.stdout.contains(self.prints),
                "{:?} is missing from the output: {}{}",
                self.prints,
                end.stdout,
                end.stderr
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_command_lines_contain_addresses() {
        assert_eq!(MCKEY.name(Network::V4), "mckey -m 239.1.1.1 -s -C 10");
        let [server, client] = UDADDY.lines(Network::V4, "10.0.0.1", "10.0.0.2");
        assert_eq!(server, "udaddy -b 10.0.0.2 -C 20 -S 1024");
        assert_eq!(client, "udaddy -s 10.0.0.2 -b 10.0.0.1 -C 20 -S 1024");
    }
}
