//! Plants bugs in Linux's own `ib_mthca` and checks that strict mode reports them.

use anyhow::Result;

use super::super::planted::{Change, Driver, Planted, meant};
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

static DRIVER: Driver = Driver {
    scenario: "strict-mthca-kernel",
    device: Device::Mthca,
    folder: "drivers/infiniband/hw/mthca",
    module: "ib_mthca",
    others: &["ib_uverbs", "ib_umad"],
    changes: CHANGES,
    planted: PLANTED,
    explained: &[meant("wqe_key"), meant("doorbell_record"), meant("arm_sequence")],
};

const CHANGES: &[Change] = &[
    (
        "mthca_dev.h",
        "#endif /* MTHCA_DEV_H */",
        "#include <linux/delay.h>\nextern int mthca_planted;\n#endif",
    ),
    (
        "mthca_main.c",
        "MODULE_LICENSE(",
        "int mthca_planted;\nmodule_param_named(planted, mthca_planted, int, 0444);\nMODULE_LICENSE(",
    ),
    ("mthca_wqe.h", "cpu_to_be32(sg->lkey)", "cpu_to_be32(sg->lkey ^ (mthca_planted == 1) << 20)"),
    ("mthca_qp.c", RECORD, "if (mthca_planted != 2) *qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff);"),
    (
        "mthca_qp.c",
        "MTHCA_GET_DOORBELL_LOCK(&dev->doorbell_lock));",
        "MTHCA_GET_DOORBELL_LOCK(&dev->doorbell_lock));\n\
         if (mthca_planted == 2) { udelay(500); *qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff); }",
    ),
    ("mthca_cq.c", "++cq->arm_sn;", "cq->arm_sn += mthca_planted != 3;"),
];
/// The statement that writes a doorbell record.
const RECORD: &str = "*qp->sq.db = cpu_to_be32(qp->sq.head & 0xffff);";

const PLANTED: &[Planted] = &[
    Planted {
        number: 1,
        about: "a WQE with a wrong L_Key",
        rules: &["wqe_key"],
        says: "of QP 0x10: local read of",
    },
    Planted {
        number: 2,
        about: "a doorbell before its doorbell record",
        rules: &["doorbell_record"],
        says: "QP 0x10: doorbell announces",
    },
    Planted {
        number: 3,
        about: "a CQ armed with a stale sequence number",
        rules: &["arm_sequence"],
        says: "with sequence number 1, expected 2",
    },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    DRIVER.run(lab, report).await
}
