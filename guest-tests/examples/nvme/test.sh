#!/bin/sh -e
# Guest a exports a disk over NVMe/RDMA. Guest b creates a file system on the disk, writes a file, and checks the file
# after reading it back:
#
#   guest-lab ci e810 --folder guest-tests/examples/nvme -- ./test.sh
case $HCAD_GUEST in
a)
    modprobe -a nvmet nvmet-rdma
    mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
    truncate -s 64M /tmp/disk
    cd /sys/kernel/config/nvmet
    mkdir subsystems/test subsystems/test/namespaces/1 ports/1
    echo 1 > subsystems/test/attr_allow_any_host
    echo /tmp/disk > subsystems/test/namespaces/1/device_path
    echo 1 > subsystems/test/namespaces/1/buffered_io
    echo 1 > subsystems/test/namespaces/1/enable
    echo rdma > ports/1/addr_trtype
    echo ipv4 > ports/1/addr_adrfam
    echo "$HCAD_RDMA_IP_A" > ports/1/addr_traddr
    echo 4420 > ports/1/addr_trsvcid
    ln -s /sys/kernel/config/nvmet/subsystems/test ports/1/subsystems/test
    # Wait until b has finished.
    busybox nc -l -p 4421
    ;;
b)
    modprobe nvme-rdma
    until nvme connect -t rdma -a "$HCAD_RDMA_IP_A" -s 4420 -n test; do sleep 1; done
    until [ -b /dev/nvme0n1 ]; do sleep 0.1; done
    mkfs.ext4 -q /dev/nvme0n1
    mkdir -p /mnt
    mount /dev/nvme0n1 /mnt
    head -c 16M /dev/urandom > /tmp/file
    cp /tmp/file /mnt
    umount /mnt
    echo 3 > /proc/sys/vm/drop_caches
    mount /dev/nvme0n1 /mnt
    busybox cmp /tmp/file /mnt/file
    echo "16 MiB were read back as written"
    umount /mnt
    nvme disconnect -n test
    busybox nc a 4421 < /dev/null
    ;;
esac
