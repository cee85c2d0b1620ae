//! IPv6 multicast groups. `rdma_cm` cannot join them, so the guests use verbs.

use std::time::Duration;

use agent::wire::{FillFile, Hex, Service, VerifyFile};
use anyhow::{Result, ensure};

use crate::scenario::failing::status;
use crate::scenario::nic::roce::{DEVICE, Gid, gid_index};
use crate::scenario::nic::station::Station;
use crate::stock_verbs::{FileRegion, StockConnect, StockPath, StockQp, StockSend, StockVerbs};

/// The group's address. Its Ethernet address is derived from the last four bytes. The first four bytes differ from
/// them, so a derivation from the wrong bytes makes the test fail.
const GROUP: &str = "ff15:401b:0000:0000:0000:0000:1234:5678";
/// Destination QP number of multicast datagrams.
const GROUP_QPN: u32 = 0xff_ffff;
const QKEY: u32 = 0x1111_1111;
const FILE: &str = "/dev/shm/group";
const REGION: u64 = 4096;
/// Length of the GRH area that precedes a datagram's data.
const GRH: u32 = 40;
const LEN: u32 = 900;
const LIMIT: Duration = Duration::from_secs(30);

/// A UD queue pair in a guest.
struct End {
    verbs: StockVerbs,
    region: FileRegion,
    qp: StockQp,
    sgid_index: u32,
}

impl End {
    async fn open(station: &mut Station) -> Result<Self> {
        let sgid_index = u32::try_from(gid_index(station, Gid::V6).await?)?;
        let vm = &mut station.vm;
        let (verbs, _) = StockVerbs::open(vm, DEVICE).await?;
        let region = verbs.region(vm, FILE, REGION).await?;
        let qp = verbs.queue_pair(vm, Service::Ud).await?;
        let connect = StockConnect {
            peer: StockPath::default(),
            mtu: 1024,
            psn: 7,
            peer_psn: 7,
            qkey: QKEY,
            timeout: 14,
            retry: 3,
            rnr_retry: 3,
            rnr_timer: 14,
        };
        verbs.connect(vm, qp, &connect).await?;
        Ok(Self { verbs, region, qp, sgid_index })
    }

    /// Waits for one successful completion.
    async fn complete(&self, station: &mut Station, received: bool) -> Result<()> {
        let found = self.verbs.poll(&mut station.vm, self.qp, 1, LIMIT).await?;
        let name = station.vm.name();
        let [done] = found.as_slice() else { anyhow::bail!("no request completed in guest {name}") };
        ensure!((done.status, done.received) == (status::SUCCESS, received), "guest {name}: {done:?}");
        ensure!(!received || done.bytes == GRH + LEN, "guest {name}: {done:?}");
        Ok(())
    }
}

/// Checks that a multicast datagram reaches the group member in the other guest unchanged.
pub(super) async fn datagram(from: &mut Station, to: &mut Station) -> Result<()> {
    let (sender, member) = (End::open(from).await?, End::open(to).await?);
    member.verbs.join(&mut to.vm, member.qp, GROUP).await?;
    let FileRegion { addr, lkey, .. } = member.region;
    member.verbs.post_recv(&mut to.vm, member.qp, &[vec![(addr, GRH + LEN, lkey)]]).await?;
    let fill = FillFile { path: FILE.into(), off: 0, len: LEN.into(), seed: 7, position: 0 };
    from.vm.call(fill).await?;
    let group = StockPath { gid: Some(GROUP.into()), sgid_index: sender.sgid_index, ..StockPath::default() };
    let request = StockSend {
        op: "send",
        sges: vec![(sender.region.addr, LEN, sender.region.lkey)],
        imm: Hex(vec![0; 4]),
        va: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
        ah: Some(sender.verbs.address(&mut from.vm, &group).await?),
        qpn: GROUP_QPN,
        qkey: QKEY,
    };
    sender.verbs.post_send(&mut from.vm, sender.qp, &[request]).await?;
    sender.complete(from, false).await?;
    member.complete(to, true).await?;
    let verify = VerifyFile { path: FILE.into(), off: GRH.into(), len: LEN.into(), seed: 7, position: 0 };
    let verified = to.vm.call(verify).await?;
    crate::scenario::endpoint::expect_same("the member", GRH.into(), LEN.into(), verified)?;
    sender.verbs.close(&mut from.vm).await?;
    member.verbs.close(&mut to.vm).await
}
