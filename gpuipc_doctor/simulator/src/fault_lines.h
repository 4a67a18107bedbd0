/* The file of faults of a library that is no driver: one a line. Define SUBJECT, what refuses a line, before. */
#ifndef FAULT_LINES_H
#define FAULT_LINES_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAULTS = 64, MAX_LINE = 512 };

__attribute__((noreturn)) static void refuse(const char *what, const char *why)
{
    fprintf(stderr, "simulated %s: %s: %s\n", SUBJECT, what, why);
    abort();
}

static int word_of(const char *const *words, const char *word, const char *line)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], word))
            return i;
    refuse(line, "not a fault");
}

/* Read the file that an environment variable names, line by line. */
static void read_fault_lines(const char *variable, void (*read_line)(const char *line))
{
    const char *path = getenv(variable);
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[MAX_LINE];
    if (!file)
        refuse(path ? path : variable, path ? strerror(errno) : "not set");
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        read_line(line);
    }
    fclose(file);
}

#endif
