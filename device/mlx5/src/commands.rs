//! Command execution, with one file per command family. A rejected command has no effect.
//!
//! # Spec
//! mlx5 interface, section 5.

mod counter;
mod cq;
pub(super) mod device;
mod eq;
mod firmware_register;
mod flow;
mod mkey;
mod multicast;
mod pages;
mod port;
mod port_register;
mod port_type;
mod qp;
mod resource;
mod srq;
mod vport;

mod rq;
mod rqt;
mod sq;
mod tir;
mod tis;

mod ownership;
mod user;

use card::frontend::Context;
use protocol::hca::mlx5::capability::AREA_LEN;
use protocol::hca::mlx5::command::{InputHeader, OutputHeader};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::user_context::User;
use protocol::ids::UserId;

use super::check::{Check, Rejection};
use super::function::{Enabled, Function};
use super::options::Setup;
use super::resources::Resources;

/// Output of a successful command. The first eight bytes are zero.
pub type Output = Vec<u8>;

fn nothing() -> Output {
    vec![0; OutputHeader::LEN]
}

/// Parses a command's input. Also returns the user on whose behalf the kernel sends the command.
///
/// # Errors
/// Fails if the opcode is unknown or the input is too short for the command.
pub fn parse(input: &[u8]) -> Result<(User, Command<'_>), Rejection> {
    let command = Command::parse(input)?;
    let InputHeader { user, .. } = InputHeader::parse_prefix(input).unwrap_or_default();
    Ok((User::from_code(user), command))
}

/// Executes a command. `output_len` is the length of the output that the driver expects.
///
/// # Errors
/// Returns the check that failed.
pub fn execute(
    function: &mut Function,
    setup: &Setup,
    cx: &mut Context<'_>,
    user: User,
    command: &Command<'_>,
    output_len: usize,
) -> Result<Output, Rejection> {
    let opcode = command.opcode().code();
    if let User::Context(user) = user {
        check_user(function, user, command)?;
    }
    if let Command::EnableHca(arguments) = command {
        return device::enable(function, setup, cx, arguments);
    }
    let Function::Enabled(enabled) = function else { return Err(Check::NotEnabled.rejects(opcode)) };
    match command {
        Command::DisableHca(arguments) => device::disable(function, setup, cx, arguments),
        Command::InitHca(_) => device::init(enabled, setup, cx),
        Command::TeardownHca(teardown) => device::teardown(enabled, setup, cx, teardown),
        Command::QueryIssi(_) => Ok(device::query_issi(enabled)),
        Command::SetIssi(set) => device::set_issi(enabled, set),
        Command::QueryPages(query) => pages::query(query),
        Command::ManagePages(manage, list) => pages::manage(enabled, manage, *list, output_len),
        Command::QueryHcaCap(query) => {
            let area: [u8; AREA_LEN] = enabled.caps.query(query)?;
            Ok([&nothing()[..], &area].concat())
        }
        Command::SetHcaCap(set, area) => enabled.caps.set(set, area.bytes()).map(|()| nothing()),
        Command::QueryAdapter(_) => Ok(device::query_adapter(setup)),
        Command::SetDriverVersion(version) => Ok(device::set_driver_version(version)),
        Command::Nop(_) | Command::QueryLag(_) | Command::QueryVnicEnv(_) => Ok(nothing()),
        Command::AccessReg(access, data) => port::access_register(enabled, cx, access, data.bytes()),
        _ => {
            let Enabled { resources, issi, .. } = &mut **enabled;
            match resources {
                Some(resources) => {
                    resources.add_executed();
                    let opcode = command.opcode();
                    let call = Call { resources: &mut *resources, issi: *issi, opcode, setup, cx, user };
                    call.check_port()?;
                    let output = on_resources(call, command)?;
                    ownership::update(resources, user, command, &output);
                    Ok(output)
                }
                None => Err(Check::NotInitialised.rejects(opcode)),
            }
        }
    }
}

/// Checks a command from a user context.
fn check_user(function: &Function, user: UserId, command: &Command<'_>) -> Result<(), Rejection> {
    let unknown = Check::UserContext.rejects(user.get());
    let resources = function.resources().ok_or(unknown)?;
    resources.users.rights(user).ok_or(unknown)?;
    ownership::check(resources, user, command)?;
    user::check(resources, user, command)
}

/// State available to commands that require INIT_HCA.
struct Call<'a, 'cx> {
    resources: &'a mut Resources,
    issi: u16,
    opcode: Opcode,
    setup: &'a Setup,
    cx: &'a mut Context<'cx>,
    /// User on whose behalf the kernel sends the command.
    user: User,
}

fn on_resources(call: Call<'_, '_>, command: &Command<'_>) -> Result<Output, Rejection> {
    match command {
        Command::QuerySpecialContexts(_) => Ok(mkey::special()),
        Command::AllocPd(_) => resource::alloc_pd(call),
        Command::DeallocPd(number) => resource::dealloc_pd(call, number.pd),
        Command::AllocUar(_) => resource::alloc_uar(call),
        Command::DeallocUar(number) => resource::dealloc_uar(call, number.uar),
        Command::AllocXrcd(_) => resource::alloc_xrcd(call),
        Command::DeallocXrcd(number) => resource::dealloc_xrcd(call, number.xrcd),
        Command::AllocTransportDomain(_) => resource::alloc_domain(call),
        Command::DeallocTransportDomain(number) => resource::dealloc_domain(call, number.domain),
        Command::AllocQCounter(_) => counter::alloc(call),
        Command::DeallocQCounter(number) => counter::dealloc(call, number.set),
        Command::QueryQCounter(query) => counter::query(call, query),
        Command::QueryVportCounter(query) => Ok(counter::query_port(call, query)),
        Command::CreateEq(create, pages) => eq::create(call, create, *pages),
        Command::DestroyEq(number) => eq::destroy(call, number.eqn),
        Command::QueryEq(number) => eq::query(call, number.eqn),
        Command::CreateCq(create, pages) => cq::create(call, create, *pages),
        Command::DestroyCq(number) => cq::destroy(call, number.cqn),
        Command::QueryCq(number) => cq::query(call, number.cqn),
        Command::ModifyCq(modify, pages) => cq::modify(call, modify, *pages),
        Command::CreateMkey(create, list) => mkey::create(call, create, list.bytes()),
        Command::QueryMkey(number) => mkey::query(call, number.index),
        Command::DestroyMkey(number) => mkey::destroy(call, number.index),
        Command::CreateQp(create, pages) => qp::create(call, create, *pages),
        Command::DestroyQp(number) => qp::destroy(call, number.qpn),
        Command::QueryQp(query) => qp::query(call, query.qpn),
        Command::MadIfc(execute) => port::mad_ifc(call, execute),
        Command::AttachToMcg(member) => multicast::attach(call, member),
        Command::DetachFromMcg(member) => multicast::detach(call, member),
        Command::CreateRmp(create, pages) => srq::create_rmp(call, create, *pages),
        Command::ModifyRmp(modify) => srq::modify_rmp(call, modify),
        Command::DestroyRmp(number) => srq::destroy(call, Opcode::CreateRmp, number.srqn),
        Command::QueryRmp(number) => srq::query(call, Opcode::CreateRmp, number.srqn),
        Command::CreateXrcSrq(create, pages) => srq::create_xrc(call, create, *pages),
        Command::DestroyXrcSrq(number) => srq::destroy(call, Opcode::CreateXrcSrq, number.srqn),
        Command::QueryXrcSrq(number) => srq::query(call, Opcode::CreateXrcSrq, number.srqn),
        Command::ArmXrcSrq(arm) => srq::arm(call, Opcode::CreateXrcSrq, arm),
        Command::CreateSrq(create, pages) => srq::create_basic(call, create, *pages),
        Command::DestroySrq(number) => srq::destroy(call, Opcode::CreateSrq, number.srqn),
        Command::QuerySrq(number) => srq::query(call, Opcode::CreateSrq, number.srqn),
        Command::ArmRq(arm) => srq::arm(call, Opcode::CreateSrq, arm),
        Command::SetFlowTableRoot(set) => flow::set_root(call, set),
        Command::CreateFlowTable(create) => flow::create_table(call, create),
        Command::DestroyFlowTable(selector) => flow::destroy_table(call, selector),
        Command::QueryFlowTable(selector) => flow::query_table(call, selector),
        Command::ModifyFlowTable(modify) => flow::modify_table(call, modify),
        Command::CreateFlowGroup(create) => flow::create_group(call, create),
        Command::DestroyFlowGroup(selector) => flow::destroy_group(call, selector),
        Command::QueryFlowGroup(selector) => flow::query_group(call, selector),
        Command::SetFlowTableEntry(set, lists) => flow::set_entry(call, set, lists.bytes()),
        Command::QueryFlowTableEntry(selector) => flow::query_entry(call, selector),
        Command::DeleteFlowTableEntry(selector) => flow::delete_entry(call, selector),
        Command::AllocFlowCounter(alloc) => flow::alloc_counter(call, alloc),
        Command::DeallocFlowCounter(number) => flow::dealloc_counter(call, number.counter),
        Command::QueryFlowCounter(query) => flow::query_counter(call, query),
        Command::QueryHcaVportContext(_) => port::query_context(call),
        Command::QueryVportState(_) => vport::query_state(call),
        Command::ModifyVportState(modify) => vport::modify_state(call, modify),
        Command::QueryNicVportContext(query) => vport::query_context(call, query),
        Command::ModifyNicVportContext(modify, list) => vport::modify_context(call, modify, list.bytes()),
        Command::SetRoceAddress(set) => vport::set_roce_address(call, set),
        Command::QueryRoceAddress(query) => vport::query_roce_address(call, query),
        Command::QueryHcaVportPkey(query) => vport::query_pkey(query),

        Command::CreateTir(create) => tir::create(call, create),
        Command::ModifyTir(modify) => tir::modify(call, modify),
        Command::DestroyTir(number) => tir::destroy(call, number.tirn),
        Command::QueryTir(number) => tir::query(call, number.tirn),
        Command::CreateTis(create) => tis::create(call, create),
        Command::ModifyTis(modify) => tis::modify(call, modify),
        Command::DestroyTis(number) => tis::destroy(call, number.tisn),
        Command::QueryTis(number) => tis::query(call, number.tisn),
        Command::CreateRqt(create, queues) => rqt::create(call, create, *queues),
        Command::ModifyRqt(modify, queues) => rqt::modify(call, modify, *queues),
        Command::DestroyRqt(number) => rqt::destroy(call, number.rqtn),
        Command::QueryRqt(number) => rqt::query(call, number.rqtn),
        Command::CreateSq(create, pages) => sq::create(call, create, *pages),
        Command::ModifySq(modify) => sq::modify(call, modify),
        Command::DestroySq(number) => sq::destroy(call, number.sqn),
        Command::QuerySq(number) => sq::query(call, number.sqn),
        Command::CreateRq(create, pages) => rq::create(call, create, *pages),
        Command::ModifyRq(modify) => rq::modify(call, modify),
        Command::DestroyRq(number) => rq::destroy(call, number.rqn),
        Command::QueryRq(number) => rq::query(call, number.rqn),

        Command::CreateUctx(create) => user::create(call, create),
        Command::DestroyUctx(number) => user::destroy(call, number.user),
        Command::CreateUmem(create, list) => user::create_umem(call, create, *list),
        Command::DestroyUmem(number) => user::destroy_umem(call, number.umem),

        _ => match command.transition() {
            Some((transition, modify)) => qp::modify(call, transition, &modify),
            None => Err(Check::Opcode.rejects(command.opcode().code())),
        },
    }
}
