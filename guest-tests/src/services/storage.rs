//! Shell commands for the server and client of each storage protocol. The server's disk is `/dev/vdc`.

/// A protocol whose client accesses a file or a block device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    pub(crate) name: &'static str,
    /// Path of the data on the client. If it is a file, the client creates it.
    pub(crate) at_client: &'static str,
    /// Path of the same data on the server.
    pub(crate) at_server: &'static str,
    /// Whether the path is a file, which can grow, rather than a device.
    pub(crate) file: bool,
    /// Command that prepares the server's disk. It is run only once.
    pub(crate) prepare: &'static str,
    /// Command that starts serving the disk at address `{server}`. It must also work in a freshly booted guest.
    /// `{client_guid}` is the GUID of the client's RDMA port.
    pub(crate) serve: &'static str,
    /// Command that connects to the server at `{server}`. If the protocol provides a block device, it appears at
    /// `at_client` soon afterwards. `{server_guid}` is the node GUID of the server's RDMA device.
    pub(crate) connect: &'static str,
    /// Command that makes the server disconnect all clients.
    pub(crate) pause: &'static str,
    /// Command that resumes the service.
    pub(crate) resume: &'static str,
    /// Command that succeeds once the client has detected the disconnection.
    pub(crate) noticed: &'static str,
    /// Command that disconnects the client.
    pub(crate) disconnect: &'static str,
    /// Command that stops the service permanently.
    pub(crate) end: &'static str,
    /// Kernel messages that are expected in the absence of errors.
    pub(crate) messages: &'static [&'static str],
    /// Kernel messages that are expected when the server disconnects.
    pub(crate) loss: &'static [&'static str],
    /// Whether connections may fail on a lossy link and then recover.
    pub(crate) may_fail: bool,
}

/// NVMe over RDMA with `nvmet` and `nvme-rdma`.
pub(crate) const NVME: Protocol = Protocol {
    name: "NVMe",
    at_client: "/dev/nvme0n1",
    at_server: "/dev/vdc",
    file: false,
    prepare: "",
    serve: "modprobe -a nvmet nvmet-rdma
        mount -t configfs configfs /sys/kernel/config 2>&1 || mountpoint -q /sys/kernel/config
        cd /sys/kernel/config/nvmet
        mkdir subsystems/hcad subsystems/hcad/namespaces/1 ports/1
        echo 1 > subsystems/hcad/attr_allow_any_host
        echo /dev/vdc > subsystems/hcad/namespaces/1/device_path
        echo 6a1f0c52-3d9e-4b7a-8c15-e2d4907b63fa > subsystems/hcad/namespaces/1/device_uuid
        echo 1 > subsystems/hcad/namespaces/1/enable
        echo rdma > ports/1/addr_trtype
        echo ipv4 > ports/1/addr_adrfam
        echo {server} > ports/1/addr_traddr
        echo 4420 > ports/1/addr_trsvcid
        ln -s /sys/kernel/config/nvmet/subsystems/hcad ports/1/subsystems/hcad",
    // The default keep-alive timeout of five seconds is too short for an emulated guest on a busy host.
    connect: "modprobe nvme-rdma
        nvme connect -t rdma -a {server} -s 4420 -n hcad \\
            --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=60",
    pause: "rm /sys/kernel/config/nvmet/ports/1/subsystems/hcad",
    resume: "ln -s /sys/kernel/config/nvmet/subsystems/hcad /sys/kernel/config/nvmet/ports/1/subsystems/hcad",
    noticed: "! grep -q live /sys/class/nvme/nvme0/state",
    disconnect: "nvme disconnect -n hcad",
    end: "cd /sys/kernel/config/nvmet
        rm ports/1/subsystems/hcad
        rmdir ports/1 subsystems/hcad/namespaces/1 subsystems/hcad",
    messages: &[],
    loss: &["nvme"],
    may_fail: false,
};

/// iSER with the LIO target and open-iscsi.
pub(crate) const ISER: Protocol = Protocol {
    name: "iSER",
    at_client: "/dev/sda",
    at_server: "/dev/vdc",
    file: false,
    prepare: "",
    serve: "mount -t configfs configfs /sys/kernel/config 2>&1 || mountpoint -q /sys/kernel/config
        modprobe -a target_core_mod target_core_iblock iscsi_target_mod ib_isert
        cd /sys/kernel/config/target
        mkdir -p core/iblock_0/disk iscsi
        echo udev_path=/dev/vdc > core/iblock_0/disk/control
        echo 6a1f0c52-3d9e-4b7a-8c15-e2d4907b63fa > core/iblock_0/disk/wwn/vpd_unit_serial
        echo 1 > core/iblock_0/disk/enable
        group=/sys/kernel/config/target/iscsi/iqn.2026-01.org.hcad:disk/tpgt_1
        mkdir -p $group/lun/lun_0 $group/np/{server}:3260
        echo 1 > $group/np/{server}:3260/iser
        ln -s /sys/kernel/config/target/core/iblock_0/disk $group/lun/lun_0/disk
        echo 0 > $group/attrib/authentication
        echo 1 > $group/attrib/generate_node_acls
        echo 1 > $group/attrib/cache_dynamic_acls
        echo 0 > $group/attrib/demo_mode_write_protect
        echo 1 > $group/enable",
    connect: "modprobe -a ib_iser sd_mod
        mkdir -p /run/lock /var/lib/iscsi
        echo InitiatorName=iqn.2026-01.org.hcad:client > /etc/iscsi/initiatorname.iscsi
        sed -i '/^iscsid.startup/d' /etc/iscsi/iscsid.conf
        iscsid
        node='iscsiadm -m node -T iqn.2026-01.org.hcad:disk -p {server}:3260'
        $node -o new -I iser
        $node -o update -n node.session.timeo.replacement_timeout -v 600
        $node -o update -n node.conn[0].timeo.noop_out_timeout -v 30
        $node -l",
    pause: "echo 0 > /sys/kernel/config/target/iscsi/iqn.2026-01.org.hcad:disk/tpgt_1/enable",
    resume: "echo 1 > /sys/kernel/config/target/iscsi/iqn.2026-01.org.hcad:disk/tpgt_1/enable",
    noticed: "! grep -q LOGGED_IN /sys/class/iscsi_session/session*/state",
    disconnect: "iscsiadm -m node -u",
    end: "group=/sys/kernel/config/target/iscsi/iqn.2026-01.org.hcad:disk/tpgt_1
        echo 0 > $group/enable
        rm $group/lun/lun_0/disk
        rmdir $group/lun/lun_0 $group/np/* $group ${group%/tpgt_1} /sys/kernel/config/target/core/iblock_0/disk",
    messages: &[
        "Rounding down aligned max_sectors",
        "db_root: cannot open",
        "MODE SENSE: unimplemented",
        // Logged because the device does not support T10 protection information.
        "T10-PI",
        // Logged because the reported optimal transfer size is the largest block count that fits in 32 bits.
        "Optimal transfer size",
    ],
    loss: &["iSCSI", "iscsi", "isert", "iser", "scsi", "connection"],
    // The initiator deregisters memory as soon as it receives the response to a command, even if the command's last
    // packet has not been acknowledged yet. If the ACK is lost, the command is retransmitted with an invalidated key.
    may_fail: true,
};

/// SRP between the LIO target `ib_srpt` and the initiator `ib_srp`. The connection is set up by `rdma_cm`.
pub(crate) const SRP: Protocol = Protocol {
    name: "SRP",
    at_client: "/dev/sda",
    at_server: "/dev/vdc",
    file: false,
    prepare: "",
    // `ib_srpt` accepts only initiators in the access list. The list identifies an initiator by its port ID, which ends
    // with the GUID.
    serve: "mount -t configfs configfs /sys/kernel/config 2>&1 || mountpoint -q /sys/kernel/config
        modprobe -a target_core_mod target_core_iblock ib_srpt
        cd /sys/kernel/config/target
        mkdir -p srpt
        echo 5555 > srpt/discovery_auth/rdma_cm_port
        mkdir -p core/iblock_0/disk
        echo udev_path=/dev/vdc > core/iblock_0/disk/control
        echo 6a1f0c52-3d9e-4b7a-8c15-e2d4907b63fa > core/iblock_0/disk/wwn/vpd_unit_serial
        echo 1 > core/iblock_0/disk/enable
        port=0x$(tr -d : < /sys/class/infiniband/mlx5_0/ports/1/gids/0)
        group=/sys/kernel/config/target/srpt/$port/$port
        acl=$group/acls/0x0000000000000000{client_guid}
        mkdir -p $group/lun/lun_0 $acl/lun_0
        ln -s /sys/kernel/config/target/core/iblock_0/disk $group/lun/lun_0/disk
        ln -s $group/lun/lun_0 $acl/lun_0/disk
        echo 1 > $group/enable",
    connect: "modprobe sd_mod
        modprobe ib_srp reconnect_delay=1 fast_io_fail_tmo=off dev_loss_tmo=600
        echo id_ext={server_guid},ioc_guid={server_guid},dest={server}:5555 \\
            > /sys/class/infiniband_srp/srp-mlx5_0-1/add_target",
    pause: "for port in /sys/kernel/config/target/srpt/0x*/0x*; do echo 0 > $port/enable; done",
    resume: "for port in /sys/kernel/config/target/srpt/0x*/0x*; do echo 1 > $port/enable; done",
    noticed: "! grep -q running /sys/class/srp_remote_ports/port-*/state",
    disconnect: "for port in /sys/class/srp_remote_ports/port-*; do echo 1 > $port/delete; done
        while [ -b /dev/sda ]; do sleep 0.1; done",
    end: "cd /sys/kernel/config/target/srpt/0x*/0x*
        echo 0 > enable
        rm acls/*/lun_0/disk lun/lun_0/disk
        rmdir acls/*/lun_0 acls/* lun/lun_0
        group=$(pwd)
        cd /
        rmdir $group ${group%/*} /sys/kernel/config/target/core/iblock_0/disk",
    messages: &[
        "db_root: cannot open",
        "MODE SENSE: unimplemented",
        "T10-PI",
        "Optimal transfer size",
        // Logged because `ib_srpt` halves the length of the send queue until the QP can be created.
        "Create QP type 2 failed",
    ],
    loss: &["srp", "scsi", "sd "],
    may_fail: true,
};

/// NFS version 4.2 over RDMA with `nfsd` and `nfs`.
pub(crate) const NFS: Protocol = Protocol {
    name: "NFS",
    at_client: "/mnt/file",
    at_server: "/export/file",
    file: true,
    prepare: "mkfs.ext4 -q -F -m 0 /dev/vdc",
    // The disk also stores the client records, without which clients could not reclaim open files.
    serve: "modprobe -a nfsd rpcrdma
        mkdir -p /export /var/lib/nfs/rpc_pipefs /var/lib/nfs/nfsdcld
        touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
        mount /dev/vdc /export
        mkdir -p /export/clients
        mount --bind /export/clients /var/lib/nfs/nfsdcld
        mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
        mountpoint -q /var/lib/nfs/rpc_pipefs || mount -t rpc_pipefs sunrpc /var/lib/nfs/rpc_pipefs
        echo 10 > /proc/fs/nfsd/nfsv4leasetime
        echo 10 > /proc/fs/nfsd/nfsv4gracetime
        nfsdcld
        rpc.mountd -N 3
        exportfs -o rw,no_root_squash,fsid=0,no_subtree_check '*:/export'
        rpc.nfsd -N 3 --rdma=20049 2",
    connect: "modprobe -a nfsv4 rpcrdma
        mkdir -p /mnt
        mount -t nfs4 -o proto=rdma,port=20049,vers=4.2 {server}:/ /mnt",
    pause: "rpc.nfsd 0",
    resume: "rpc.nfsd -N 3 --rdma=20049 2",
    // There is nothing to wait for, since the kernel does not report the disconnection.
    noticed: "true",
    disconnect: "umount /mnt",
    end: "rpc.nfsd 0
        exportfs -ua
        pkill -x nfsdcld
        while pgrep -r D,R,S -x nfsdcld > /dev/null; do sleep 0.1; done
        umount /var/lib/nfs/nfsdcld /export",
    messages: &[],
    loss: &["nfs: server", "RPC:", "rpcrdma", "svcrdma", "NFSD:"],
    may_fail: false,
};
