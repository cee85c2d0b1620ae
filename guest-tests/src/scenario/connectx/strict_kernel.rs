//! Checks that strict mode reports bugs planted in Linux's `mlx5_ib`. `mlx5_core` is the unmodified Debian module.

use anyhow::Result;

use super::super::planted::{Change, Driver, Planted, meant};
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;

static DRIVER: Driver = Driver {
    scenario: "strict-mlx5-kernel",
    device: Device::ConnectxIb,
    folder: "drivers/infiniband/hw/mlx5",
    module: "mlx5_ib",
    others: &["mlx5_core", "ib_uverbs", "ib_umad"],
    changes: CHANGES,
    planted: PLANTED,
    explained: &[meant("wqe_key"), meant("doorbell_record"), meant("arm_sequence"), meant("wqe_index")],
};

const CHANGES: &[Change] = &[
    ("mlx5_ib.h", "#endif /* MLX5_IB_H */", "extern int mlx5_planted;\n#endif"),
    (
        "main.c",
        "MODULE_LICENSE(",
        "int mlx5_planted;\nmodule_param_named(planted, mlx5_planted, int, 0444);\nMODULE_LICENSE(",
    ),
    ("wr.c", "cpu_to_be32(sg->lkey)", "cpu_to_be32(sg->lkey ^ (mlx5_planted == 1) << 20)"),
    // With bug 2, the driver rings the doorbell before it writes the doorbell record. A register read between the two
    // writes ensures that the device sees the doorbell first. As the device ignores a doorbell for WQEs that the record
    // does not cover, the driver then rings it a second time.
    ("wr.c", RECORD, "if (mlx5_planted != 2) qp->db.db[MLX5_SND_DBR] = cpu_to_be32(qp->sq.cur_post);"),
    (
        "wr.c",
        "mlx5_write64((__be32 *)ctrl, bf->bfreg->map + bf->offset);",
        "mlx5_write64((__be32 *)ctrl, bf->bfreg->map + bf->offset);\n\
         if (mlx5_planted == 2) { ioread32be(&to_mdev(qp->ibqp.device)->mdev->iseg->fw_rev);\n\
         qp->db.db[MLX5_SND_DBR] = cpu_to_be32(qp->sq.cur_post); wmb();\n\
         mlx5_write64((__be32 *)ctrl, bf->bfreg->map + bf->offset); }",
    ),
    ("cq.c", "mlx5_cq_arm(&cq->mcq,", "if (mlx5_planted == 3) cq->mcq.arm_sn = 0;\nmlx5_cq_arm(&cq->mcq,"),
    ("wr.c", "((u32)(qp->sq.cur_post) << 8)", "((u32)(u16)(qp->sq.cur_post - (mlx5_planted == 4)) << 8)"),
];
/// The statement that writes a doorbell record.
const RECORD: &str = "qp->db.db[MLX5_SND_DBR] = cpu_to_be32(qp->sq.cur_post);";

const PLANTED: &[Planted] = &[
    Planted { number: 1, about: "a WQE with a wrong L_Key", rules: &["wqe_key"], says: "local read of" },
    Planted {
        number: 2,
        about: "a doorbell before its doorbell record",
        rules: &["doorbell_record"],
        says: "blocks, but the doorbell record has",
    },
    Planted {
        number: 3,
        about: "a CQ armed with a stale sequence number",
        rules: &["arm_sequence"],
        says: "armed with sequence number 0, expected 1",
    },
    Planted {
        number: 4,
        about: "a WQE with the index of the block before it",
        rules: &["wqe_index"],
        says: "has index 0xffff",
    },
];

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    DRIVER.run(lab, report).await
}
