//! Tests of the trace output: names and fields of registers and commands.

use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::admin::scheduler::Element;
use protocol::hca::e810::regs::Register;

use super::*;

fn traced(act: impl FnOnce(&mut Driver)) -> String {
    let mut driver = started();
    let written = Written::default();
    driver.bus.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    act(&mut driver);
    driver.bus.hca.flush();
    written.text()
}

#[test]
fn register_trace_shows_names_and_fields() {
    let text = traced(|driver| {
        driver.read(Register::GlnvmUld);
        driver.write(Register::QintRqctl(3), 1 << 30 | 5);
        driver.write(Register::GlintItr(1, 4), 25);
        driver.counter(Register::GlprtGorc);
        driver.write(Register::GlintDynCtl(0), 1 << 31 | 1 << 2);
    });
    assert_eq!(
        text,
        "1.500000 hca1 read GLNVM_ULD at=bar0+0xb6008 width=4 value=0x73f\n\
         1.500000 hca1 write QINT_RQCTL[3] at=bar0+0x15000c width=4 value=0x40000005 fields.vector=5 fields.enable=true\n\
         1.500000 hca1 write GLINT_ITR[1][4] at=bar0+0x156010 width=4 value=0x19\n\
         1.500000 hca1 read GLPRT_GORC at=bar0+0x380000 width=8 value=0x0\n\
         1.500000 hca1 write GLINT_DYN_CTL[0] at=bar0+0x160000 width=4 value=0x80000004 fields.trigger=true \
         fields.keep_enable=true\n\
         1.500000 hca1 interrupt MSIX[0] delivery=sent\n"
    );
}

#[test]
fn command_trace_shows_parameters_and_buffers() {
    let text = traced(|driver| {
        driver.succeed(&AdminCommand::with_output(Opcode::ReadMac, [0; 16], 16));
        driver.execute(&AdminCommand { opcode: 0x06e0, ..AdminCommand::direct(Opcode::GetVersion, [7; 16]) });
        let mut count = [0; 16];
        count[0] = 1;
        let element = Element { teid: 3.into(), ..Element::default() };
        driver.succeed(&AdminCommand::with_input(Opcode::GetElements, count, &element.emit()));
    });
    let commands: Vec<_> = text.lines().filter(|line| line.contains(" command ")).collect();
    assert_eq!(
        commands,
        [
            "1.500000 hca1 command read_mac status=OK us=0.0 op=0x107 answer.flags=0x10 answer.count=1 \
             out.mac=02:e8:10:00:00:01",
            "1.500000 hca1 command unknown status=ENOSYS refused=\"ENOSYS: command 0x6e0\" us=0.0 op=0x6e0 \
             ask.bytes=07070707070707070707070707070707 answer.bytes=07070707070707070707070707070707",
            "1.500000 hca1 command get_elements status=OK us=0.0 op=0x404 ask.count=1 answer.count=1 \
             answer.processed=1 in.element=[{parent=0x0 teid=0x3}] \
             out.element=[{parent=0x2 teid=0x3 data.kind=entry_point}]",
        ]
    );
}
