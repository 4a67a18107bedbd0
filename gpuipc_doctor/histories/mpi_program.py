"""A history of messages as a C program for an MPI's vendor, which needs only ``mpi.h`` and the GPU driver.

Each rank prints each of its steps before it performs the step, and compares whole buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuipc_doctor.histories.message_layouts import BLANK, LAYOUTS
from gpuipc_doctor.histories.message_model import ANY_SOURCE, ANY_TAG, OF_ALL, Model, Part, Receive, legal
from gpuipc_doctor.histories.message_performer import MARGIN, PAGE
from gpuipc_doctor.histories.message_steps import steps
from gpuipc_doctor.histories.operations import History, Operation

_CUDA = """
    void *context;
    driver("cuInit")(0);
    driver("cuDevicePrimaryCtxRetain")(&context, 0); driver("cuCtxSetCurrent")(context);"""

DRIVERS = {
    "cuda": (
        "libcuda.so.1",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        'driver("cuMemcpy")((uint64_t)to, (uint64_t)from, nbytes)',
        _CUDA,
    ),
    "hip": ("libamdhip64.so", "hipMalloc", "hipFree", 'driver("hipMemcpy")(to, from, nbytes, 4)', ""),
}
"""Backend → driver library, its functions that allocate, free and copy, and the initialisation."""

_KINDS = list(LAYOUTS)


def source(history: History) -> str:
    """The history as a C program. With a correct MPI it prints "all steps succeeded" and exits with 0.

    Collectives and one-sided operations are left out; then it says so and exits with 2.
    """
    once = replace(history, times=1)
    model, operations = Model(once), legal(once)
    known = [(operation, model.ready(operation.by), model.apply(operation).parts) for operation in operations]
    body = [
        _case(number, *step, says)
        for number, (step, says) in enumerate(zip(known, steps(once.of(operations)), strict=True), 1)
    ]
    left = [
        f"    if (me == {request.by - 1}) {{ {_wait(number, request.parts)} }}"
        for number, request in model.requests.items()
        if request.parts
    ]
    ranks = max(2, *history.processes)
    library, allocate, free, copy, begin = DRIVERS[history.backend]
    values = {
        "ranks": str(ranks),
        "things": str(1 + max((operation.makes for operation in operations), default=0)),
        "kinds": ", ".join(
            f"{{ {layout.begin}, {layout.block}, {layout.stride}, {layout.split} }}"
            for layout in LAYOUTS.values()
        ),
        "blank": str(BLANK),
        "margin": str(MARGIN),
        "page": str(PAGE),
        "times": str(history.times),
        "steps": "\n".join(body),
        "left": "\n".join(left),
        "library": library,
        "allocate": allocate,
        "free": free,
        "copy": copy,
        "begin": begin,
    }
    text = _PROGRAM
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _case(number: int, operation: Operation, ready: list[int], parts: tuple[Part, ...], says: str) -> str:
    who = "1" if operation.do in OF_ALL else f"me == {operation.by - 1}"
    lines = " ".join(_lines(operation, ready, parts))
    return f'    if ({who}) {{ step({number}, "{says}"); {lines} }}'


def _lines(operation: Operation, ready: list[int], parts: tuple[Part, ...]) -> Iterator[str]:
    one, nbytes = operation, operation.nbytes
    kind = _KINDS.index(one.kind) if one.kind in _KINDS else 0
    typed = f"1, type({kind}, {nbytes})" if LAYOUTS[_KINDS[kind]].is_derived else f"{nbytes}, MPI_BYTE"
    source = "MPI_ANY_SOURCE" if one.peer == ANY_SOURCE else f"rank({one.within}, {one.peer - 1})"
    tag = "MPI_ANY_TAG" if one.tag == ANY_TAG else str(one.tag)
    out = f"buffer({one.on}, {kind}), {typed}, {source}, {tag}, comm[{one.within}]"
    fill = f"fill({one.on}, {kind}, {nbytes}, {one.stamp});"
    match one.do:
        case "allocate":
            yield f"allocate({one.makes}, {nbytes}, {int(one.kind == 'device')});"
        case "free":
            yield f"release({one.on});"
        case "send" | "ssend":
            yield f"{fill} try(MPI_{one.do.capitalize()}({out})); {_looks(parts)}"
        case "isend" | "issend":
            yield f"{fill} try(MPI_{one.do.capitalize()}({out}, &request[{one.makes}]));"
        case "recv":
            yield f"clear({one.on}); {_tried(f'MPI_Recv({out}, &status)', parts)} {_looks(parts)}"
        case "irecv":
            yield f"clear({one.on}); try(MPI_Irecv({out}, &request[{one.makes}]));"
        case "sendrecv":
            into = f"buffer({one.of}, {kind}), {typed}, {source}, {tag}"
            sent = out.rpartition(", ")[0]
            yield f"{fill} clear({one.of});"
            yield _tried(f"MPI_Sendrecv({sent}, {into}, comm[{one.within}], &status)", parts)
            yield _looks(parts)
        case "make-send":
            yield f"try(MPI_Send_init({out}, &request[{one.makes}]));"
        case "make-receive":
            yield f"try(MPI_Recv_init({out}, &request[{one.makes}]));"
        case "start":
            yield from map(_prepared, parts)
            yield f"try(MPI_Start(&request[{one.on}]));"
        case "free-request":
            yield f"try(MPI_Request_free(&request[{one.on}]));"
        case "wait" | "test":
            yield _wait(one.on, parts, test=one.do == "test")
        case "probe":
            yield f"try(MPI_Probe({source}, {tag}, comm[{one.within}], &status));"
        case "iprobe":
            probe = f"MPI_Iprobe({source}, {tag}, comm[{one.within}], &flag, &status)"
            yield f"for (flag = 0; !flag;) try({probe});"
        case "matched-probe":
            yield f"try(MPI_Mprobe({source}, {tag}, comm[{one.within}], &message[{one.makes}], &status));"
        case "receive-matched":
            to = f"buffer({one.on}, {kind}), {typed}, &message[{one.of}], &status"
            yield f"clear({one.on}); {_tried(f'MPI_Mrecv({to})', parts)} {_looks(parts)}"
        case "barrier":
            yield "try(MPI_Barrier(MPI_COMM_WORLD));"
        case "duplicate":
            yield f"try(MPI_Comm_dup(MPI_COMM_WORLD, &comm[{one.makes}])); turned[{one.makes}] = 0;"
        case "reverse":
            split = f"MPI_Comm_split(MPI_COMM_WORLD, 0, RANKS - me, &comm[{one.makes}])"
            yield f"try({split}); turned[{one.makes}] = 1;"
        case "collective" | "one-sided":
            yield "is_partial = 1;"
        case "free-communicator":
            yield f"try(MPI_Comm_free(&comm[{one.on}]));"
        case "wait-all":
            all_of = ", ".join(f"request[{number}]" for number in ready)
            yield f"MPI_Request all[] = {{ {all_of} }}; MPI_Status seen[{len(ready)}];"
            yield f"try(MPI_Waitall({len(ready)}, all, seen));"
            for place, (number, part) in enumerate(zip(ready, parts, strict=True)):
                yield f"request[{number}] = all[{place}]; {_looks((part,), f'seen[{place}]')}"


def _tried(call: str, parts: tuple[Part, ...]) -> str:
    if any(isinstance(part, Receive) and part.truncates for part in parts):
        return f"too_long({call});"
    return f"try({call});"


def _wait(number: int, parts: tuple[Part, ...], *, test: bool = False) -> str:
    if test:
        waits = f"for (flag = 0; !flag;) try(MPI_Test(&request[{number}], &flag, &status));"
    else:
        waits = _tried(f"MPI_Wait(&request[{number}], &status)", parts)
    return f"{waits} {_looks(parts)}"


def _prepared(part: Part) -> str:
    if isinstance(part, Receive):
        return f"clear({part.posted.on});"
    sent = part.sent
    return f"fill({sent.on}, {_KINDS.index(sent.kind)}, {sent.nbytes}, {sent.stamp});"


def _looks(parts: tuple[Part, ...], status: str = "status") -> str:
    """C statements that compare received or sent data."""
    said = []
    for part in parts:
        if not isinstance(part, Receive):
            sent = part.sent
            kind = _KINDS.index(sent.kind)
            said.append(f"compare({sent.on}, {kind}, {sent.nbytes}, {sent.stamp}, {sent.nbytes});")
        elif part.message is not None and not part.truncates:
            posted, sent = part.posted, part.message.sent
            kind = _KINDS.index(posted.kind)
            said.append(f"compare({posted.on}, {kind}, {posted.nbytes}, {sent.stamp}, {sent.nbytes});")
            of = f"rank({part.message.within}, {sent.by - 1})"
            said.append(f"look(&{status}, {of}, {sent.tag}, {sent.nbytes});")
    return " ".join(said)


_PROGRAM = """\
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
    printf("    %s\\nstep %d failed\\n", why, now); fflush(stdout);
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
            printf("    byte %lu of buffer %d is wrong\\n", (unsigned long)i, thing); fail("wrong data");
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
    if (ranks != RANKS) { printf("needs %d ranks\\n", RANKS); MPI_Abort(MPI_COMM_WORLD, 2); }
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
"""
