/* Opens the first RDMA device, registers memory, and prints the state of the device's port:
 *
 *   cc hello.c -o hello -libverbs
 *   guest-lab here connectx -- ./hello
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

static void *check(void *object, const char *what)
{
    if (!object) {
        perror(what);
        exit(1);
    }
    return object;
}

int main(void)
{
    /* More than the 8 MiB that Linux lets users lock by default. */
    static char memory[16 << 20];
    struct ibv_device **devices = check(ibv_get_device_list(NULL), "ibv_get_device_list");
    struct ibv_context *context;
    struct ibv_port_attr port;
    struct ibv_pd *pd;
    struct ibv_mr *mr;

    if (!devices[0]) {
        fprintf(stderr, "this machine has no RDMA device\n");
        return 1;
    }
    context = check(ibv_open_device(devices[0]), "ibv_open_device");
    pd = check(ibv_alloc_pd(context), "ibv_alloc_pd");
    mr = check(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    if (ibv_query_port(context, 1, &port)) {
        perror("ibv_query_port");
        return 1;
    }
    printf("hello from %s: port %s\n", ibv_get_device_name(devices[0]), ibv_port_state_str(port.state));
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(devices);
    return 0;
}
