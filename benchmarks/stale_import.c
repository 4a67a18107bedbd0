/* Does zeMemOpenIpcHandle open the buffer whose handle it was given? An exporter allocates a buffer, fills it, exports
 * it, frees it when the importer has closed it, and takes the next, larger one; each is another memory object.
 *
 *   cc -o stale_import stale_import.c -lze_loader     (headers: libze-dev or level-zero-devel)
 *   ./stale_import               handles travel as they are: the driver fetches the descriptor (26.09 and later on Xe2)
 *   ./stale_import descriptor    the importer fetches it and puts its own number into the handle, as MPI libraries do
 *
 * Exit code 0: each import has its own data; 1: at least one has the data of a freed buffer; 2: cannot tell. It also
 * prints the importer's descriptors, which grow by one for each import with intel/compute-runtime#974. */
#define _GNU_SOURCE
#include <dirent.h>
#include <level_zero/ze_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BUFFERS = 5, READ_BYTES = 4096, CANNOT_TELL = 2 };
static const size_t MIB = 1 << 20;

extern ze_result_t zeMemPutIpcHandle(ze_context_handle_t, ze_ipc_mem_handle_t) __attribute__((weak)); /* since 1.6 */

struct message {
    ze_ipc_mem_handle_t handle;
    pid_t exporter;
};

static ze_context_handle_t context;
static ze_device_handle_t device;
static ze_command_list_handle_t list;

static void must(const char *call, ze_result_t result)
{
    if (result == ZE_RESULT_SUCCESS)
        return;
    printf("cannot tell: %s returned 0x%x\n", call, result);
    exit(CANNOT_TELL);
}
#define CALL(function, ...) must(#function, function(__VA_ARGS__))

static void start(int is_talking)
{
    ze_driver_handle_t driver;
    uint32_t one = 1;
    ze_context_desc_t of_context = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
    ze_command_queue_desc_t of_queue = {.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC,
                                        .mode = ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS};
    ze_driver_properties_t version = {.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES};
    ze_device_properties_t name = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
    CALL(zeInit, ZE_INIT_FLAG_GPU_ONLY);
    CALL(zeDriverGet, &one, &driver);
    CALL(zeDeviceGet, driver, &one, &device);
    CALL(zeContextCreate, driver, &of_context, &context);
    CALL(zeCommandListCreateImmediate, context, device, &of_queue, &list);
    CALL(zeDriverGetProperties, driver, &version);
    CALL(zeDeviceGetProperties, device, &name);
    if (is_talking)
        printf("driver 0x%08x, %s\n", version.driverVersion, name.name);
}

static void receive(int from, void *to, size_t size)
{
    if (recv(from, to, size, MSG_WAITALL) == (ssize_t)size)
        return;
    printf("cannot tell: the other process has ended\n");
    exit(CANNOT_TELL);
}

static int descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = -3; /* ".", "..", and that of the directory */
    while (directory && readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* The exporter's descriptor as one of this process, in the handle instead of the exporter's number. */
static int fetch(struct message *message)
{
    int number, own;
    memcpy(&number, message->handle.data, sizeof number);
    int process = (int)syscall(SYS_pidfd_open, message->exporter, 0);
    own = (int)syscall(SYS_pidfd_getfd, process, number, 0);
    close(process);
    if (own < 0) {
        printf("cannot tell: pidfd_getfd failed: %m\n");
        exit(CANNOT_TELL);
    }
    memcpy(message->handle.data, &own, sizeof own);
    return own;
}

static int import(int exporter, int fetches)
{
    int stale = 0;
    static char data[READ_BYTES];
    start(0);
    for (int i = 0; i < BUFFERS; i++) {
        struct message message;
        void *mapping;
        receive(exporter, &message, sizeof message);
        int own = fetches ? fetch(&message) : -1;
        CALL(zeMemOpenIpcHandle, context, device, message.handle, 0, &mapping);
        CALL(zeCommandListAppendMemoryCopy, list, data, mapping, sizeof data, NULL, 0, NULL);
        CALL(zeMemCloseIpcHandle, context, mapping);
        if (own >= 0)
            close(own);
        int is_stale = data[0] != 'A' + i;
        stale += is_stale;
        printf("import %d: data of buffer %c, expected %c%s; %d descriptors\n", i + 1, data[0], 'A' + i,
               is_stale ? ": STALE" : "", descriptors());
        fflush(stdout);
        send(exporter, "", 1, MSG_NOSIGNAL);
    }
    return stale ? 1 : 0;
}

static void export(int importer)
{
    ze_device_mem_alloc_desc_t how = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC};
    static char data[READ_BYTES];
    start(1);
    fflush(stdout);
    for (int i = 0; i < BUFFERS; i++) {
        struct message message = {.exporter = getpid()};
        void *buffer;
        char done;
        CALL(zeMemAllocDevice, context, &how, (size_t)(i + 1) * 8 * MIB, 0, device, &buffer);
        memset(data, 'A' + i, sizeof data);
        CALL(zeCommandListAppendMemoryCopy, list, buffer, data, sizeof data, NULL, 0, NULL);
        CALL(zeMemGetIpcHandle, context, buffer, &message.handle);
        send(importer, &message, sizeof message, MSG_NOSIGNAL);
        receive(importer, &done, 1);
        if (zeMemPutIpcHandle)
            CALL(zeMemPutIpcHandle, context, message.handle);
        CALL(zeMemFree, context, buffer);
    }
}

int main(int count, char **arguments)
{
    int fetches = count > 1 && !strcmp(arguments[1], "descriptor"), ends[2];
    if (count > 1 + fetches || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) {
        fprintf(stderr, "usage: %s [descriptor]\n", arguments[0]);
        return CANNOT_TELL;
    }
    alarm(60); /* a command that never ends */
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* else Yama allows pidfd_getfd of descendants only */
    pid_t exporter = fork();
    close(ends[exporter ? 0 : 1]);
    if (!exporter) {
        alarm(60);
        export(ends[0]);
        return 0;
    }
    int code = import(ends[1], fetches);
    puts(code ? "a handle opened a freed buffer" : "each handle opened its own buffer");
    return code;
}
