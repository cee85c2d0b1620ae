// Prints the state of each RDMA device's port 1 when the kernel adds the device:
//
//   guest-lab build guest-tests/examples/module
//   guest-lab reload lab --module guest-tests/examples/module/ports.ko
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static int ports_add(struct ib_device *device)
{
	struct ib_port_attr port;
	int error = ib_query_port(device, 1, &port);

	if (!error)
		pr_info("%s: port 1 is %s, path MTU %d\n", dev_name(&device->dev),
			port.state == IB_PORT_ACTIVE ? "active" : "not active",
			ib_mtu_enum_to_int(port.active_mtu));
	return error;
}

static struct ib_client ports_client = { .name = "ports", .add = ports_add };

static int __init ports_init(void)
{
	return ib_register_client(&ports_client);
}

static void __exit ports_exit(void)
{
	ib_unregister_client(&ports_client);
}

module_init(ports_init);
module_exit(ports_exit);
MODULE_DESCRIPTION("Prints the state of port 1 of each RDMA device");
MODULE_LICENSE("Dual BSD/GPL");
