//! Subnet administration (SA): answers queries from the HCA's own guest.
//!
//! # Spec
//! IBTA volume 1, chapter 15; mthca interface, section 9.

mod groups;
mod paths;
mod records;
mod selector;
mod services;
mod transfers;

use engine::Instant;
use protocol::ids::Qpn;
use protocol::mad::class_port_info::{self, ClassPortInfo};
use protocol::mad::header::Header;
use protocol::mad::record::{self, RecordLayout};
use protocol::mad::rmpp;
use protocol::mad::sa::{CLASS_VERSION, DATA_LEN, SaMad, attribute};
use protocol::mad::{Mad, MadStatus, Method};

use self::groups::Groups;
use self::services::Services;
use self::transfers::Transfers;
use super::port::{ManagedPort, response};
use super::subnet::Subnet;
use super::subnet_switch::SubnetSwitch;
use super::{Datagram, View};
use crate::net::address::Addresses;

/// Bit in the second capability mask of ClassPortInfo: send-only full membership is supported.
const SEND_ONLY_FULL_MEMBER: u32 = 1 << 12;
/// Bit in the capability mask of ClassPortInfo: multicast groups are supported.
const UD_MULTICAST: u16 = 1 << 9;

/// The state that responses are derived from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaContext<'a> {
    pub(super) view: &'a View,
    pub(super) port: &'a ManagedPort,
    pub(super) subnet: &'a Subnet,
    pub(super) addresses: &'a Addresses,
}

impl SaContext<'_> {
    fn switch(&self) -> SubnetSwitch<'_> {
        SubnetSwitch { subnet: self.subnet, port: self.port }
    }
}

/// Records of one kind, all of the same length.
#[derive(Clone, Debug)]
struct Records {
    layout: &'static RecordLayout,
    all: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(super) struct SubnetAdministration {
    groups: Groups,
    services: Services,
    transfers: Transfers,
    /// Whether the response to the last query depended on the discovered nodes.
    depends_on_subnet: bool,
}

impl SubnetAdministration {
    pub(super) fn new(mtu: u8) -> Self {
        Self {
            groups: Groups::new(mtu),
            services: Services::default(),
            transfers: Transfers::default(),
            depends_on_subnet: false,
        }
    }

    /// Handles a SubnAdm datagram and appends the responses to `out`.
    pub(super) fn handle(&mut self, context: &SaContext<'_>, sent: &Datagram, out: &mut Vec<Mad>) {
        let header = protocol::mad::header(&sent.mad);
        let transfer = SaMad::of(&sent.mad).rmpp();
        self.depends_on_subnet = false;
        // An RMPP packet other than DATA belongs to an ongoing transfer. Its method does not indicate this, because
        // Linux acknowledges a response with the method of the request.
        if transfer.active && transfer.kind != rmpp::DATA {
            self.transfers.handle(context.view.now, sent.source_qp, &header, &transfer, out);
            return;
        }
        if !header.method.is_request() {
            return;
        }
        let request = Request { header, sa: SaMad::of(&sent.mad) };
        match self.answer(context, &request) {
            Ok(Answer::Attribute(bytes)) => out.push(request.reply(MadStatus::OK, &bytes)),
            Ok(Answer::Table(records)) => {
                let template = request.reply(MadStatus::OK, &[]);
                let begun = self.transfers.begin(context.view.now, sent.source_qp, template, &records, out);
                if let Err(status) = begun {
                    out.push(request.reply(status, &[]));
                }
            }
            Err(status) => out.push(request.reply(status, &[])),
        }
    }

    /// Returns whether the response to the last query depended on the discovered nodes, in which case a sweep is
    /// useful.
    pub(super) fn depends_on_subnet(&self) -> bool {
        self.depends_on_subnet
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.transfers.next_deadline()
    }

    pub(super) fn handle_deadline(&mut self, now: Instant, out: &mut Vec<(Qpn, Mad)>) {
        self.transfers.handle_deadline(now, out);
    }

    fn answer(&mut self, context: &SaContext<'_>, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let Header { base_version, class_version, method, attribute, .. } = request.header;
        if base_version != Header::BASE_VERSION || class_version != CLASS_VERSION {
            return Err(MadStatus::BAD_VERSION);
        }
        match (method, attribute) {
            (Method::GET, class_port_info::ATTRIBUTE) => Ok(Answer::Attribute(class_info().emit().to_vec())),
            (Method::SET, attribute::MC_MEMBER_RECORD) => self.groups.join(context, request),
            (Method::DELETE, attribute::MC_MEMBER_RECORD) => self.groups.leave(context, request),
            (Method::SET, attribute::SERVICE_RECORD) => self.services.register(context.view.now, request),
            (Method::DELETE, attribute::SERVICE_RECORD) => self.services.withdraw(context.view.now, request),
            // A subscription succeeds but has no effect, because there are no events to report.
            (Method::SET, attribute::INFORM_INFO) => Ok(Answer::Attribute(request.sa.data.to_vec())),
            (Method::GET | Method::GET_TABLE, attribute) => {
                let records = self.records(context, request, attribute)?;
                select(records, request, method == Method::GET_TABLE)
            }
            (Method::SET | Method::DELETE, _) => Err(MadStatus::BAD_ATTRIBUTE),
            _ => Err(MadStatus::BAD_METHOD),
        }
    }

    /// Returns all records of a kind. For paths, returns only the records that match the request.
    fn records(
        &mut self,
        context: &SaContext<'_>,
        request: &Request<'_>,
        attribute: u16,
    ) -> Result<Records, MadStatus> {
        let (layout, all) = match attribute {
            attribute::PATH_RECORD => (&record::PATH, paths::find(context, request)?),
            attribute::MC_MEMBER_RECORD => (&record::MC_MEMBER, self.groups.records()),
            attribute::SERVICE_RECORD => (&record::SERVICE, self.services.records(context.view.now)),
            attribute::NODE_RECORD => (&record::NODE, records::nodes(context)),
            attribute::PORT_INFO_RECORD => (&record::PORT_INFO, records::ports(context)),
            attribute::SWITCH_INFO_RECORD => (&record::SWITCH_INFO, records::switches()),
            attribute::SM_INFO_RECORD => (&record::SM_INFO, records::subnet_managers(context)),
            attribute::LINK_RECORD => (&record::LINK, records::links(context)),
            attribute::GUID_INFO_RECORD => (&record::GUID_INFO, records::guids(context)),
            attribute::PKEY_TABLE_RECORD => (&record::PKEY_TABLE, records::pkeys(context)),
            _ => return Err(MadStatus::BAD_ATTRIBUTE),
        };
        self.depends_on_subnet =
            !matches!(attribute, attribute::MC_MEMBER_RECORD | attribute::SERVICE_RECORD);
        Ok(Records { layout, all })
    }
}

/// A response without its headers.
#[derive(Clone, Debug)]
enum Answer {
    Attribute(Vec<u8>),
    Table(Records),
}

#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    header: Header,
    sa: &'a SaMad,
}

impl Request<'_> {
    fn attribute<const LEN: usize>(&self) -> &[u8; LEN] {
        const { assert!(LEN <= DATA_LEN) };
        self.sa.data.first_chunk().unwrap_or(&[0; LEN])
    }

    /// Returns whether all bits of `components` are set in the component mask.
    fn has(&self, components: u64) -> bool {
        self.sa.component_mask() & components == components
    }

    /// Builds a single-datagram response. If `status` is an error, the response repeats the request's attribute.
    fn reply(&self, status: MadStatus, attribute: &[u8]) -> Mad {
        let mut mad = [0; 256];
        protocol::mad::set_header(&mut mad, &response(&self.header, status));
        let sa = SaMad::of_mut(&mut mad);
        sa.set_component_mask(self.sa.component_mask());
        if status == MadStatus::OK {
            for (to, from) in sa.data.iter_mut().zip(attribute) {
                *to = *from;
            }
        } else {
            sa.data = self.sa.data;
        }
        mad
    }
}

/// Selects the records that match the request (section 15.4.4).
fn select(records: Records, request: &Request<'_>, table: bool) -> Result<Answer, MadStatus> {
    let Records { layout, mut all } = records;
    let mask = match request.header.attribute {
        // Paths were matched when they were created.
        attribute::PATH_RECORD => 0,
        attribute::PORT_INFO_RECORD => records::filter_capabilities(&mut all, request),
        _ => request.sa.component_mask(),
    };
    all.retain(|record| layout.matches(record, &request.sa.data, mask));
    if table {
        return Ok(Answer::Table(Records { layout, all }));
    }
    match all.len() {
        0 => Err(MadStatus::NO_RECORDS),
        1 => Ok(Answer::Attribute(all.swap_remove(0))),
        // If several paths match, any of them is valid. Return the first.
        _ if request.header.attribute == attribute::PATH_RECORD => Ok(Answer::Attribute(all.swap_remove(0))),
        _ => Err(MadStatus::TOO_MANY_RECORDS),
    }
}

fn class_info() -> ClassPortInfo {
    ClassPortInfo {
        base_version: Header::BASE_VERSION,
        class_version: CLASS_VERSION,
        capabilities: UD_MULTICAST,
        capabilities2: SEND_ONLY_FULL_MEMBER,
        resp_time: 16,
    }
}
