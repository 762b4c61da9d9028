/* A node that differs, preloaded: ranks above 0 do not see the name CHANGED_HIDES in any folder; and
   while the file CHANGED_ISA exists, a process that starts has oneDNN keep to older instructions. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void keep_to_older_instructions(void) {
    const char *flag = getenv("CHANGED_ISA");
    if (flag && access(flag, F_OK) == 0)
        setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
}

struct dirent64 *readdir64(DIR *folder) {
    static struct dirent64 *(*next)(DIR *);
    if (!next)
        next = (struct dirent64 * (*)(DIR *)) dlsym(RTLD_NEXT, "readdir64");
    const char *hidden = getenv("CHANGED_HIDES"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    int hides = hidden && rank && *rank != '0';
    struct dirent64 *entry = next(folder);
    while (entry && hides && strcmp(entry->d_name, hidden) == 0)
        entry = next(folder);
    return entry;
}
