/* What a process can lose by a call besides device memory: for the drivers' faults and for MPI's. */
#ifndef LOSSES_H
#define LOSSES_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void lose_descriptor(void)
{
    if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0)
        abort();
}

static inline void lose_addresses(uint64_t bytes)
{
    if (mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        abort();
}

static inline void lose_host_memory(uint64_t bytes)
{
    char *lost = malloc(bytes);
    if (!lost)
        abort();
    memset(lost, 1, bytes);
    *(char *volatile *)&lost = NULL; /* or the compiler leaves all of it out */
}

static inline void *sleep_for_ever(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static inline void lose_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, sleep_for_ever, NULL) || pthread_detach(thread))
        abort();
}

#endif
