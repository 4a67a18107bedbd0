/* LD_PRELOAD: records which of the kernel's files a program looks at, or gives some of them a fault.

   KERNEL_FILES_LOG: file to which the names are appended, one a line; a simulated node's begin with "~".
   KERNEL_FILES: names with the fault, each between spaces. KERNEL_FILES_ARE: the fault.
   KERNEL_FILES_DIRECTORIES: has the directories "empty" and "odd".

   Only Python counts: perf(1) and its like are other people's. In a name, N stands for a number: /proc/N/stat is that of any process. Calls of glibc itself are not seen. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_BYTES (1 << 20)

static const char ODD[] = "odd \xff(: - unknown\n? 0x -1 :\n";

static int begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static int is_kernels(const char *path) {
    return strcmp(path, "/proc") == 0 || strcmp(path, "/dev/shm") == 0 || begins(path, "/proc/") ||
           begins(path, "/sys/");
}

/* A component that is one number, such as a pid, a range of addresses or a PCI address, is "N". */
static void generalise(const char *from, char *to) {
    while (*from) {
        if (*from == '/') {
            *to++ = *from++;
            continue;
        }
        size_t length = strcspn(from, "/");
        int is_number = strspn(from, "0123456789abcdef:.-") == length && strcspn(from, "0123456789") < length;
        const char *end = from + length;
        if (is_number) {
            *to++ = 'N';
            from = end;
        }
        while (from < end) {
            if (*from >= '0' && *from <= '9') {
                *to++ = 'N';
                from += strspn(from, "0123456789");
            } else {
                *to++ = *from++;
            }
        }
    }
    *to = 0;
}

/* The fault of a file; empty without one. Records its name. */
static const char *fault(const char *path) {
    static _Thread_local char behind[PATH_MAX]; /* stacks may be small */
    char name[PATH_MAX + 4] = " ";
    if (!begins(program_invocation_short_name, "python") || !path || strlen(path) >= PATH_MAX) return "";
    if (begins(path, "/proc/self/fd/")) { /* not this link is read, but the file behind it */
        ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, path, behind, sizeof behind - 1);
        if (length > 0 && *behind == '/') {
            behind[length] = 0;
            path = behind;
        }
    }
    const char *simulated = strstr(path, "/root/");
    if (simulated && is_kernels(simulated + 5)) {
        strcat(name, "~");
        path = simulated + 5;
    } else if (!is_kernels(path)) {
        return "";
    }
    generalise(path, name + strlen(name));
    const char *log = getenv("KERNEL_FILES_LOG"), *files = getenv("KERNEL_FILES");
    if (log) {
        int fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
        strcat(name, "\n");
        if (fd >= 0) (void)!write(fd, name + 1, strlen(name) - 1);
        if (fd >= 0) close(fd);
        return "";
    }
    strcat(name, " ");
    return files && strstr(files, name) ? getenv("KERNEL_FILES_ARE") : "";
}

/* Sets errno if a file with this fault cannot be opened. */
static int is_refused(const char *fault) {
    int code = strcmp(fault, "absent") == 0    ? ENOENT
               : strcmp(fault, "refused") == 0 ? EACCES
               : strcmp(fault, "gone") == 0    ? ESRCH
                                               : 0;
    if (code) errno = code;
    return code;
}

static int with_text(const char *text, size_t length) {
    int fd = memfd_create("kernel-file", MFD_CLOEXEC);
    (void)!write(fd, text, length);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static int first_half(int fd) {
    char *text = malloc(MOST_BYTES);
    ssize_t length = 0, more;
    while ((more = read(fd, text + length, MOST_BYTES - length)) > 0) length += more;
    close(fd);
    fd = with_text(text, length / 2);
    free(text);
    return fd;
}

static int open_with(const char *fault, int directory, const char *path, int flags, mode_t mode) {
    if (flags & O_CREAT) fault = ""; /* a simulated node is being made */
    if (is_refused(fault)) return -1;
    int writes = flags & (O_WRONLY | O_RDWR);
    if (strcmp(fault, "broken") == 0) { /* address 0 cannot be read: EIO */
        path = "/proc/self/mem";
    } else if (strcmp(fault, "empty") == 0 && !writes) {
        path = "/dev/null";
    } else if (strcmp(fault, "odd") == 0 && !writes) {
        return with_text(ODD, sizeof ODD - 1);
    }
    int fd = syscall(SYS_openat, directory, path, flags, mode);
    return fd >= 0 && strcmp(fault, "half") == 0 && !writes ? first_half(fd) : fd;
}

#define OPEN_AT(directory)                                                                                   \
    va_list more;                                                                                            \
    va_start(more, flags);                                                                                   \
    mode_t mode = va_arg(more, mode_t);                                                                      \
    va_end(more);                                                                                            \
    return open_with(fault(path), directory, path, flags, mode)

int open(const char *path, int flags, ...) { OPEN_AT(AT_FDCWD); }
int open64(const char *path, int flags, ...) { OPEN_AT(AT_FDCWD); }
int openat(int directory, const char *path, int flags, ...) { OPEN_AT(directory); }
int openat64(int directory, const char *path, int flags, ...) { OPEN_AT(directory); }

FILE *fopen(const char *path, const char *mode) {
    int flags = *mode == 'r' ? O_RDONLY : *mode == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY | O_CREAT | O_APPEND;
    if (strchr(mode, '+')) flags = (flags & ~O_WRONLY) | O_RDWR;
    if (strchr(mode, 'e')) flags |= O_CLOEXEC;
    int fd = open_with(fault(path), AT_FDCWD, path, flags, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

DIR *opendir(const char *path) {
    char other[PATH_MAX + 8];
    const char *why = fault(path);
    if (is_refused(why)) return NULL;
    if (strcmp(why, "broken") == 0) {
        errno = EIO;
        return NULL;
    }
    if (*why) {
        snprintf(other, sizeof other, "%s/%s", getenv("KERNEL_FILES_DIRECTORIES"), strcmp(why, "odd") ? "empty" : why);
        path = other;
    }
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    return fd < 0 ? NULL : fdopendir(fd);
}

ssize_t readlink(const char *path, char *to, size_t size) {
    const char *why = fault(path);
    if (is_refused(why)) return -1;
    if (strcmp(why, "odd") == 0 && size > 3) return memcpy(to, "odd", 3) ? 3 : 0;
    if (*why) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_readlinkat, AT_FDCWD, path, to, size);
}

/* Permissions of a file do not hide its status; that of a simulated node's files is needed to make them. */
#define STATUS(name, parameters, arguments)                                                            \
    int name parameters {                                                                                    \
        const char *why = fault(path);                                                                       \
        int is_hidden = is_kernels(path) && (strcmp(why, "absent") == 0 || strcmp(why, "gone") == 0);        \
        if (is_hidden && is_refused(why)) return -1;                                                         \
        int(*real) parameters = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                  \
        return real arguments;                                                                               \
    }
STATUS(stat, (const char *path, struct stat *to), (path, to))
STATUS(lstat, (const char *path, struct stat *to), (path, to))
STATUS(stat64, (const char *path, struct stat64 *to), (path, to))
STATUS(lstat64, (const char *path, struct stat64 *to), (path, to))
STATUS(fstatat, (int at, const char *path, struct stat *to, int flags), (at, path, to, flags))
STATUS(fstatat64, (int at, const char *path, struct stat64 *to, int flags), (at, path, to, flags))
STATUS(statvfs64, (const char *path, struct statvfs64 *to), (path, to))
STATUS(access, (const char *path, int mode), (path, mode))
