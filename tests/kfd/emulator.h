/* AMD's kernel driver (amdkfd and amdgpu) as a library to preload, so that AMD's user space runs without a GPU.
 *
 *   interposed.c  the C library's calls that reach /dev/kfd and /dev/dri/renderD*
 *   kfd.c         the ioctls of /dev/kfd
 *   render.c      the ioctls of a render node
 *   memory.c      buffers and the GPUs' address spaces
 *   events.c      events, and waiting for them
 *   faults.c      faults that it is told to have
 *   queues.c      the engine: AQL packets; sdma.c: SDMA packets; kernels.c: HIP's own copy and fill kernels
 *
 * A buffer is an unlinked file in a tmpfs of its GPU, and a dma-buf is a descriptor of that file: Linux counts its
 * references, and frees it when the last process that has it has closed it or was killed. Free memory of the device
 * is free space of the tmpfs. Nothing else is shared between processes.
 *
 * What is not played is reported on stderr by its name and refused with ENOTTY, as Linux refuses an unknown ioctl.
 * Answered with success, but not done (reviewed against kfd_ioctl.h and amdgpu_drm.h of Linux 6.18):
 *   SET_MEMORY_POLICY, flags of coherence; PM4 ACQUIRE_MEM, SDMA's cache flush, fences of AQL packets: no caches
 *   SET_SCRATCH_BACKING_VA, SET_TRAP_HANDLER, RUNTIME_ENABLE: no shaders, no debugger
 *   ACQUIRE_VM: each process has its own addresses anyway; a second one of a GPU is not refused
 *   ALLOC_MEMORY_OF_GPU, GEM_VA: rights to read, write or execute are not enforced, overlapping maps not refused
 *   IMPORT_DMABUF, IPC_IMPORT_HANDLE: a GPU may import any other's memory; links and P2P limits are not looked at
 *   CREATE_QUEUE, UPDATE_QUEUE: priorities, and percentages other than 0, have no effect
 *   SMI_EVENTS: a file from which no event comes; GET_TILE_CONFIG, INFO_REGISTERS: no images, any value
 *   SDMA's poll of a register: met at once
 * And a buffer costs its process a descriptor and a mapping, which it does not on a real node: memory that a runtime
 * forgets to release is also seen as these. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { MAX_GPUS = 8, PAGE_BYTES = 4096 };

/* One lock for all of it: held in every ioctl and while the engine plays packets. */
extern pthread_mutex_t the_lock;

int gpu_count(void);
const char *run_directory(void);  /* KFD_EMULATOR, or this library's: has vram0, gtt0, … and ipc */
uint32_t gpu_id(int gpu);         /* KFD's name of a GPU; as topology.py writes it */
int gpu_with_id(uint32_t id);     /* -1: no such GPU */
uint64_t nanoseconds(void);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
void trace(const char *format, ...) __attribute__((format(printf, 1, 2))); /* with KFD_EMULATOR_TRACE=1 */

/* ---- faults.c ---- */

void fault_look(const char *call);  /* which fault strikes in this call, which is counted */
bool fault_is(const char *kind);    /* whether such a fault strikes now */
bool fault_answers(int *answer);    /* whether the ioctl ends here, with this answer */
bool faults_are_told(void);
void note_export(void); /* the process is an exporter, or importer, from now on */
void note_import(void);

/* ---- interposed.c ---- */

int out_of_the_way(int fd); /* the same file at a high number, so that descriptors count up as on a real node */

enum { OFFSET_BUFFER_SHIFT = 40 };     /* mmap offsets: a buffer's number … */
#define OFFSET_DOORBELLS (1ull << 61)  /* … or one of these pages, of which each GPU has doorbells of its own */
enum { OFFSET_GPU_SHIFT = 46 };
#define OFFSET_REGISTERS (1ull << 62)

/* ---- memory.c ---- */

enum heap { VRAM, GTT };

struct buffer {
    enum { UNUSED, IN_FILE, OF_USER, PAGES_OF_DEVICE } kind;
    enum heap heap;
    int gpu;           /* whose memory it is */
    int render_node;   /* whose GEM handle it is; -1: KFD's own */
    int file;          /* IN_FILE only */
    dev_t device;      /* that file's */
    ino_t inode;
    uint64_t address;  /* where KFD maps it on GPUs */
    uint64_t size;
    uint8_t *host;     /* where the emulator itself reaches it */
    unsigned mapped;   /* GPUs on which KFD mapped it, a bit each */
    bool imported;     /* from another process */
};

/* Each returns a buffer's number, or a negative errno. */
int buffer_create(enum heap, int gpu, uint64_t size);
int buffer_of_user(int gpu, uint64_t host, uint64_t size);
int buffer_of_device(int gpu, uint64_t address, uint64_t size);
int buffer_import(int fd);
struct buffer *buffer_numbered(uint64_t number); /* NULL: none */
int buffer_with_file(int fd, int render_node);   /* -1: this render node has no handle of it */
int buffer_descriptor(const struct buffer *);    /* a new descriptor of its file, or a negative errno */
void buffer_free(int number);
void buffer_keep(int number, int gpu); /* a fault: its memory is not released, even when its process ends */
int another_import(int than);          /* the number of another buffer of another process; 0: none */
int memory_behind(int fd, struct stat *, enum heap *); /* the GPU whose memory fd is; -1: none */
uint64_t vram_total(int gpu);
uint64_t vram_free(int gpu);
uint64_t vram_free_as_told(int gpu); /* the same, but for a fault */

void map_on(unsigned gpus, uint64_t address, uint64_t size, uint8_t *host, int buffer);
void unmap_from(unsigned gpus, int buffer);
bool unmap_range(unsigned gpus, uint64_t address, uint64_t size); /* whether anything was mapped there */

/* What a GPU reaches at an address. NULL, or false, after page_fault() when it reaches nothing there. */
void *reach(int gpu, uint64_t address, uint64_t size);
void *host_address(int gpu, uint64_t address); /* the same without a fault; if nothing is mapped, the address */
bool copy_on(int gpu, uint64_t to, uint64_t from, uint64_t size);
bool fill_on(int gpu, uint64_t to, const void *unit, uint64_t unit_size, uint64_t size);

/* ---- events.c ---- */

struct kfd_ioctl_create_event_args;
struct kfd_ioctl_wait_events_args;
int event_create(struct kfd_ioctl_create_event_args *);
int event_destroy(uint32_t id);
int event_set(uint32_t id);
int event_reset(uint32_t id);
int event_wait(struct kfd_ioctl_wait_events_args *);
void page_fault(int gpu, uint64_t address); /* sets the events of type KFD_IOC_EVENT_MEMORY */
void hardware_exception(int gpu);           /* the GPU was reset: those of type KFD_IOC_EVENT_HW_EXCEPTION */

/* ---- queues.c, sdma.c, kernels.c ---- */

struct queue {
    bool used, stopped;
    int gpu;
    uint32_t type;
    uint64_t ring, size;
    volatile uint64_t *read, *write;
    uint64_t done; /* SDMA: bytes played */
};

struct kfd_ioctl_create_queue_args;
int queue_create(struct kfd_ioctl_create_queue_args *);
int queue_destroy(uint32_t id);
int queue_update(uint32_t id, uint64_t ring, uint64_t size, bool runs);
void interrupt(uint32_t event); /* the engine has done something that this event stands for */
void stop_queues_in(const uint8_t *host, uint64_t size); /* whose pointers lie there: it is unmapped */
void wake_engine(void);
void reset_gpu(int gpu); /* a fault: all queues stop, and the process is told so */

/* Play the next packet. False: there is none, or it waits for something, or the queue was stopped. */
bool play_sdma(struct queue *);
bool play_kernel(int gpu, const void *dispatch);

/* ---- kfd.c, render.c ---- */

int kfd_ioctl(unsigned number, void *arguments);
int render_ioctl(int gpu, unsigned number, void *arguments);
