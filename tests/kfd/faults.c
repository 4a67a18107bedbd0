/* Faults that the emulated driver is told to have, so that checks must find them through AMD's own runtime.
 *
 *   KFD_EMULATOR_FAULTS='IPC_IMPORT_HANDLE any 3 previous; copy importer 1+ short'
 *
 * CALL PROCESS NTH KIND [VALUE]. CALL is an ioctl's name in kfd.c or render.c, or "copy", "fill" or "signal": what the
 * engine does. PROCESS is "any"; "exporter", which a process is from its first export on; or "importer", from its
 * first import of another process' memory on; only calls from then on count. NTH is "3", the third of these calls in a
 * process, or "3+", that and all later ones.
 *
 *   fail ERRNO   the ioctl is refused      ignore      it reports success and does nothing
 *   late MS      it answers late           hang        it never answers; the process can be killed
 *   kill SIGNAL  the process gets a signal
 *
 * Other kinds are of one call and are played there: `fault_is("short")`. */
#define _GNU_SOURCE
#include "emulator.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_FAULTS = 8 };

static struct fault {
    char call[32], process[16], kind[16];
    int nth, value, seen;
    bool goes_on;
} faults[MAX_FAULTS];
static int fault_count = -1;
static const struct fault *struck; /* in the call that is played now */

static bool is_exporter, is_importer;

void note_export(void)
{
    is_exporter = true;
}

void note_import(void)
{
    is_importer = true;
}

static void read_faults(void)
{
    const char *told = getenv("KFD_EMULATOR_FAULTS");
    char text[512], *rest = text;
    fault_count = 0;
    snprintf(text, sizeof text, "%s", told ? told : "");
    for (char *one; (one = strsep(&rest, ";")) && fault_count < MAX_FAULTS;) {
        struct fault *fault = &faults[fault_count];
        char nth[16];
        if (!one[strspn(one, " ")])
            continue;
        if (sscanf(one, "%31s %15s %15s %15s %d", fault->call, fault->process, nth, fault->kind, &fault->value) < 4) {
            complain("KFD_EMULATOR_FAULTS: cannot read '%s'", one);
            _exit(2);
        }
        fault->nth = atoi(nth);
        fault->goes_on = strchr(nth, '+');
        fault_count++;
    }
}

static bool strikes(struct fault *fault, const char *call)
{
    bool here = !strcmp(fault->process, "exporter")   ? is_exporter
                : !strcmp(fault->process, "importer") ? is_importer
                                                      : true;
    if (!here || strcmp(fault->call, call))
        return false;
    fault->seen++;
    return fault->seen == fault->nth || (fault->goes_on && fault->seen > fault->nth);
}

/* The lock is not held meanwhile: other threads and the engine go on. */
static void wait_outside(int milliseconds)
{
    pthread_mutex_unlock(&the_lock);
    if (milliseconds < 0)
        for (;;)
            pause();
    nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000L}, NULL);
    pthread_mutex_lock(&the_lock);
}

void fault_look(const char *call)
{
    if (fault_count < 0)
        read_faults();
    struck = NULL;
    for (struct fault *fault = faults; fault < faults + fault_count; fault++)
        if (strikes(fault, call))
            struck = fault;
    if (!struck)
        return;
    trace("fault: %s of %s, %d", struck->kind, call, struck->seen);
    if (fault_is("late")) {
        wait_outside(struck->value);
        struck = NULL; /* others may have been struck meanwhile */
    } else if (fault_is("hang"))
        wait_outside(-1);
    else if (fault_is("kill"))
        kill(getpid(), struck->value);
}

bool faults_are_told(void)
{
    return fault_count > 0;
}

bool fault_is(const char *kind)
{
    return struck && !strcmp(struck->kind, kind);
}

bool fault_answers(int *answer)
{
    *answer = fault_is("fail") ? -struck->value : 0;
    return fault_is("fail") || fault_is("ignore");
}
