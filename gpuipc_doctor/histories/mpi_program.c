/* A history of valid messages that an MPI library failed, found by gpuipc-doctor (mpi-histories).
 * mpicc -o history history.c -ldl && mpiexec -n @ranks@ ./history
 * It exits with 1 at the step that fails, with 0 when none does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define UNUSED __attribute__((unused))
enum { RANKS = @ranks@, THINGS = @things@, TIMES = @times@, BLANK = @blank@, HANG_S = 20 };
static const struct layout { int begin, block, stride, split; } kinds[] = { @kinds@ };
static unsigned char *at[THINGS];
static uint64_t size[THINGS];
UNUSED static int on_device[THINGS], turned[THINGS], me, now, flag, is_partial;
UNUSED static MPI_Request request[THINGS];
UNUSED static MPI_Message message[THINGS];
static MPI_Comm comm[THINGS];
UNUSED static MPI_Status status;
static void *library;

static int (*driver(const char *name))() { return (int (*)())dlsym(library, name); }
static void fail(const char *why)
{
    printf("    %s\nstep %d failed\n", why, now); fflush(stdout);
    sleep(1); /* the launcher may not forward what a rank printed just before it aborts */
    MPI_Abort(MPI_COMM_WORLD, 1); _exit(1);
}
static void hangs(int signal) { (void)signal; fail("hangs"); }
static void step(int number, const char *says) { now = number; puts(says); alarm(HANG_S); }
static void try(int code)
{
    char text[MPI_MAX_ERROR_STRING]; int length;
    if (code) { MPI_Error_string(code, text, &length); fail(text); }
}
UNUSED static void too_long(int code)
{
    int class; MPI_Error_class(code, &class);
    if (class != MPI_ERR_TRUNCATE) fail("a message that is too long for its receive is no MPI_ERR_TRUNCATE");
}
UNUSED static int rank(int within, int world) { return turned[within] ? RANKS - 1 - world : world; }
static void copy(void *to, const void *from, uint64_t nbytes, int device)
{
    if (!device) memcpy(to, from, nbytes);
    else if (@copy@) fail("the driver cannot copy");
}
static void allocate(int thing, uint64_t nbytes, int device)
{
    nbytes += @margin@; nbytes += -nbytes % @page@;
    size[thing] = nbytes; on_device[thing] = device;
    if (!device) at[thing] = malloc(nbytes);
    else if (driver("@allocate@")(&at[thing], nbytes)) fail("the driver has no memory");
}
UNUSED static void release(int thing)
{
    if (!on_device[thing]) free(at[thing]); else driver("@free@")(at[thing]);
}
UNUSED static void *buffer(int thing, int kind) { return at[thing] + kinds[kind].begin; }
UNUSED static MPI_Datatype type(int kind, int nbytes)
{
    struct layout l = kinds[kind]; MPI_Datatype made;
    int lengths[] = { nbytes / 3, nbytes - nbytes / 3 }, places[] = { 0, nbytes / 3 + l.split };
    if (l.block) MPI_Type_vector(nbytes / l.block, l.block, l.stride, MPI_BYTE, &made);
    else if (l.split) MPI_Type_indexed(2, lengths, places, MPI_BYTE, &made);
    else MPI_Type_contiguous(nbytes, MPI_BYTE, &made);
    MPI_Type_commit(&made); return made;
}
static unsigned char *image(int thing, int kind, uint64_t nbytes, uint32_t stamp, uint64_t came)
{
    struct layout l = kinds[kind]; unsigned char *made = malloc(size[thing]);
    memset(made, BLANK, size[thing]);
    for (uint64_t i = 0; i < came; i++) {
        uint64_t gap = i >= nbytes / 3 ? l.split : 0;
        uint64_t place = l.block ? i / l.block * l.stride + i % l.block : i + gap;
        made[l.begin + place] = (stamp * 2654435761u ^ (uint32_t)(i / 4)) >> i % 4 * 8;
    }
    return made;
}
static void fill(int thing, int kind, uint64_t nbytes, uint32_t stamp)
{
    unsigned char *made = image(thing, kind, nbytes, stamp, nbytes);
    copy(at[thing], made, size[thing], on_device[thing]); free(made);
}
UNUSED static void clear(int thing) { fill(thing, 0, 0, 0); }
static void compare(int thing, int kind, uint64_t nbytes, uint32_t stamp, uint64_t came)
{
    unsigned char *wanted = image(thing, kind, nbytes, stamp, came), *found = malloc(size[thing]);
    copy(found, at[thing], size[thing], on_device[thing]);
    for (uint64_t i = 0; i < size[thing]; i++)
        if (found[i] != wanted[i]) {
            printf("    byte %lu of buffer %d is wrong\n", (unsigned long)i, thing); fail("wrong data");
        }
    free(wanted); free(found);
}
UNUSED static void look(MPI_Status *seen, int source, int tag, int nbytes)
{
    int count; MPI_Get_count(seen, MPI_BYTE, &count);
    if (seen->MPI_SOURCE != source || seen->MPI_TAG != tag || count != nbytes) fail("the status is wrong");
}

static void history(void)
{
@steps@
@left@
}

int main(int argc, char **argv)
{
    int ranks, provided;
    setlinebuf(stdout); signal(SIGALRM, hangs);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me); MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != RANKS) { printf("needs %d ranks\n", RANKS); MPI_Abort(MPI_COMM_WORLD, 2); }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    comm[0] = MPI_COMM_WORLD;
    library = dlopen("@library@", RTLD_NOW | RTLD_GLOBAL);
    if (!library) { puts("no @library@"); MPI_Abort(MPI_COMM_WORLD, 2); }@begin@
    for (int round = 0; round < TIMES; round++) { history(); MPI_Barrier(MPI_COMM_WORLD); }
    if (me == 0)
        puts(is_partial ? "no step failed, but this program leaves out collectives and one-sided operations"
                        : "all steps succeeded");
    MPI_Finalize();
    return is_partial ? 2 : 0;
}
